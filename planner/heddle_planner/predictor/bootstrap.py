"""How much of a score is luck: the bootstrap over trajectories.

Moments of one trajectory are nearly the same, so whole trajectories are drawn, with replacement and within
their fold, as scores are (Efron, Annals of Statistics 7, 1979). Two predictors are compared on the same
draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.evaluate import Held
from heddle_planner.predictor.protocol import Floats
from heddle_planner.predictor.scores import concordance, mean_of_folds, pearson, recall_of_longest

DRAWS: Final = 200
LEVELS: Final = (0.05, 0.95)
MEASURES: Final[dict[str, Callable[[Floats, Floats], float | None]]] = {
    "recall_top10": lambda truth, said: recall_of_longest(truth, said, 0.10),
    "pearson": pearson,
    "concordance": concordance,
}


@dataclass(frozen=True, slots=True)
class Lead:
    """A predictor's score, what it is ahead of another by, and the 90 % interval of that difference."""

    score: float
    ahead: float
    low: float
    high: float


def leads(
    one: Held, other: Held, rows: NDArray[np.bool_], *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Lead]:
    """Of ``one`` over ``other`` (predictions of the same moments) by measure; those that the rows do not
    give are left out.
    """
    kept = np.flatnonzero(rows)
    random = np.random.default_rng(seed)
    drawn = [kept, *(_drawn(kept, one, random) for _ in range(draws))]
    found = {}
    for name, measure in MEASURES.items():
        pairs = [(_score(measure, one, some), _score(measure, other, some)) for some in drawn]
        known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
        if len(known) < len(pairs):
            continue
        ahead = np.array([mine - theirs for mine, theirs in known])
        low, high = np.quantile(ahead[1:], LEVELS)
        found[name] = Lead(known[0][0], float(ahead[0]), float(low), float(high))
    return found


def _score(
    measure: Callable[[Floats, Floats], float | None], held: Held, rows: NDArray[np.intp]
) -> float | None:
    return mean_of_folds(measure, held.truth[rows], held.said.mean[rows], held.fold[rows])


def _drawn(rows: NDArray[np.intp], held: Held, random: np.random.Generator) -> NDArray[np.intp]:
    """Rows of as many trajectories, drawn in each fold."""
    parts = []
    for fold in np.unique(held.fold[rows]):
        here = rows[held.fold[rows] == fold]
        _, index, counts = np.unique(held.trajectory[here], return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ordered = here[np.argsort(index, kind="stable")]
        for number in random.integers(0, len(counts), len(counts)):
            parts.append(ordered[ends[number] - counts[number] : ends[number]])
    return np.concatenate(parts)
