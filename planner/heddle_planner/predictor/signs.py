"""What means the same whoever the agent is: it asks a person, it edits, its words look for or look back.

Weights that trees and words have learned of one agent say nothing of another, and an agent's usual numbers
are not known before some of its trajectories have finished. These few signs are shares in 0..1 or counts of
cues, so they need no scale; they move what `History` says of an agent that was not in the data.

The fit is a mixed model: each agent has slopes of its own about shared ones, and the shared ones are kept.
What holds for one agent alone goes into its own. Means are taken out by agent and age, so that neither
lengths nor ages of agents pass for what a sign tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.ages import age_of
from heddle_planner.predictor.features import FEATURES, StepFeatures
from heddle_planner.predictor.protocol import Floats, PredictorError

SIGNS: Final = (
    "no_tool_share",
    "recent_person",
    "share_edit",
    "recent_edit",
    "recent_cue_starting",
    "recent_cue_checking",
    "recent_cue_ending",
)
"""Names of `FEATURES`, but for the share of steps that called no tool or asked a person."""
UNDER_WAY: Final = 8
"""Steps from which on edits and words count: in the first steps of a work they do not tell how far it is."""
_ASKING: Final = 2
"""The first of `SIGNS`, which count from the first step on."""
FORMING: Final = 8.0
"""Steps after which a sign counts half: a share of two steps is mostly chance."""
_SHARED_RIDGE: Final = 50.0
_OWN_RIDGE: Final = 100.0
"""Trajectories, once an age, that pull slopes to nothing, and an agent's own to the shared ones."""
LEAST_TRAJECTORIES: Final = 15
"""Of an agent that is learned from."""
_MOST: Final = 1.5
"""Bound of what is said: a factor of 4.5."""
_BELIEVED: Final = 0.5
"""Share of it that is: what is unusual among known agents may be a stranger's habit."""
_MOST_CUES: Final = 20.0

_NO_TOOL: Final = FEATURES.index("no_tool_steps")
_COLUMNS: Final = [FEATURES.index(name) for name in SIGNS[1:]]


@dataclass(slots=True)
class Signs:
    """A slope for each of `SIGNS`; knows nothing until fitted."""

    slopes: Floats = field(default_factory=lambda: np.zeros(len(SIGNS)))
    usual: Floats = field(default_factory=lambda: np.zeros(len(SIGNS)))
    """Mean of the signs over agents: where they say nothing."""

    @classmethod
    def fit(
        cls,
        moments: Sequence[StepFeatures],
        off: Floats,
        agents: NDArray[np.intp],
        trajectories: NDArray[np.intp],
    ) -> Self:
        """``off``: log(truth / what history said). ``agents`` and ``trajectories`` number them. All of
        shape (n,).
        """
        steps = np.array([moment.steps for moment in moments], dtype=np.intp)
        signs, ages = _signs(moments), age_of(steps)
        learned = [
            np.flatnonzero((agents == agent) & (steps > 0))
            for agent in np.unique(agents)
            if len(np.unique(trajectories[agents == agent])) >= LEAST_TRAJECTORIES
        ]
        if not learned:
            return cls()
        usual = _mean([_mean(signs[rows]) for rows in learned])
        formed = _formed(signs, usual, steps)
        parts = [_within_ages(formed[rows], off[rows], ages[rows], trajectories[rows]) for rows in learned]
        variance = np.mean([np.average(x**2, axis=0, weights=weight) for x, _, weight in parts], axis=0)
        scale = np.sqrt(variance) + 1e-6
        left, right = _SHARED_RIDGE * np.eye(len(SIGNS)), np.zeros(len(SIGNS))
        for x, y, weight in parts:
            standard = x / scale
            square, together = standard.T @ (weight[:, None] * standard), standard.T @ (weight * y)
            # The agent's own slopes, integrated out.
            own = square @ np.linalg.inv(square + _OWN_RIDGE * np.eye(len(SIGNS)))
            left += square - own @ square
            right += together - own @ together
        slopes = np.linalg.solve(left, right) / scale
        return cls(np.asarray(slopes, dtype=np.float64), usual)

    def predict(self, moments: Sequence[StepFeatures]) -> Floats:
        """Logarithm of the factor by which history is off; 0 before the first step. Shape (n,)."""
        steps = np.array([moment.steps for moment in moments], dtype=np.intp)
        said = _formed(_signs(moments), self.usual, steps) @ self.slopes
        return np.asarray(_BELIEVED * np.clip(said, -_MOST, _MOST), dtype=np.float64)

    def as_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return {"names": list(SIGNS), "slopes": self.slopes.tolist(), "usual": self.usual.tolist()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError; PredictorError for other signs."""
        if body["names"] != list(SIGNS):
            raise PredictorError("signs: names: are not those of this version; train again")
        slopes, usual = (np.array(body[name], dtype=np.float64) for name in ("slopes", "usual"))
        for values in (slopes, usual):
            if values.shape != (len(SIGNS),) or not np.isfinite(values).all():
                raise PredictorError(f"signs: must be {len(SIGNS)} finite numbers each")
        return cls(slopes, usual)


def _signs(moments: Sequence[StepFeatures]) -> Floats:
    """Shape (n, len(SIGNS)); NaN where a sign is not known."""
    numbers = np.array([moment.numbers for moment in moments], dtype=np.float64).reshape(-1, len(FEATURES))
    steps = np.array([moment.steps for moment in moments], dtype=np.float64)
    share = numbers[:, _NO_TOOL] / np.maximum(steps, 1.0)
    return np.clip(np.column_stack([share, numbers[:, _COLUMNS]]), 0.0, _MOST_CUES)


def _formed(signs: Floats, usual: Floats, steps: NDArray[np.intp]) -> Floats:
    """What is unusual, by how much there was to see of it; 0 where it is not known."""
    seen = np.repeat((steps / (steps + FORMING))[:, None], len(SIGNS), axis=1)
    seen[steps < UNDER_WAY, _ASKING:] = 0.0
    return np.asarray(np.nan_to_num((signs - usual) * seen), dtype=np.float64)


def _mean(signs: Floats | Sequence[Floats]) -> Floats:
    """Of each sign, over the rows that know it; 0 where none does."""
    known = np.isfinite(signs)
    total = np.where(known, signs, 0.0).sum(axis=0)
    return np.asarray(total / np.maximum(known.sum(axis=0), 1), dtype=np.float64)


def _within_ages(
    x: Floats, y: Floats, ages: NDArray[np.intp], trajectories: NDArray[np.intp]
) -> tuple[Floats, Floats, Floats]:
    """Both less their means at each age, and weights by which a trajectory counts once an age."""
    x, y, weight = x.copy(), y.copy(), np.ones(len(y))
    for age in np.unique(ages):
        here = ages == age
        x[here] -= x[here].mean(axis=0)
        y[here] -= y[here].mean()
        _, index, counts = np.unique(trajectories[here], return_inverse=True, return_counts=True)
        weight[here] = 1.0 / counts[index]
    return x, y, weight
