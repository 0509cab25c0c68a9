"""How much opinions are worth at each age of a trajectory, by what they proved on held-out tasks."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.censoring import Flags
from heddle_planner.predictor.protocol import Floats

AGES: Final = (0, 1, 2, 4, 8, 16)
"""First steps of the ages that have weights of their own."""
_WEIGHT_PRIOR: Final = 20.0
"""Rows that pull an age's weights towards those of the age after it."""


def age_of(steps: NDArray[np.intp]) -> NDArray[np.intp]:
    """Index in `AGES` of each number of steps."""
    return np.searchsorted(np.array(AGES), steps, side="right") - 1


def weights_at(weights: Floats, steps: NDArray[np.intp]) -> Floats:
    """Each row's weights. Shape (n, opinions)."""
    return np.asarray(weights[age_of(steps)], dtype=np.float64)


def age_weights(wanted: Floats, said: Floats, steps: NDArray[np.intp], finished: Flags) -> Floats:
    """How much of each opinion to believe at each age, by least squares on held-out rows; in 0..1.2.

    Shapes (n,), (n, opinions); the result is (ages, opinions). From the oldest age back: an age with few
    rows leans on the one after it. Censored rows are left out. Opinions that agree share the weight.
    """
    ages = age_of(steps)
    opinions = said.shape[1]
    weights = np.zeros((len(AGES), opinions))
    before = np.full(opinions, 1.0 / opinions)
    pull = _WEIGHT_PRIOR * np.diag(np.maximum(1e-9, (said**2).mean(axis=0)))
    for age in range(len(AGES) - 1, -1, -1):
        here = (ages == age) & finished
        x, y = said[here], wanted[here]
        if len(x):
            x, y = x - x.mean(axis=0), y - y.mean()
        weights[age] = np.clip(np.linalg.solve(x.T @ x + pull, x.T @ y + pull @ before), 0.0, 1.2)
        before = weights[age]
    return weights
