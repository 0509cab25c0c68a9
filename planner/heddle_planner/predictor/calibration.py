"""Makes predictions right on average, and intervals hold what they say, from held-out predictions.

Few parameters, since a set of a hundred trajectories must do: the mean is ``exp(level + slope * log
estimate)``; the quantiles are those of held-out errors (split conformal).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from heddle_planner.predictor.protocol import Floats

if TYPE_CHECKING:
    # Censoring needs SciPy, which an environment of the transformer need not have.
    from heddle_planner.predictor.censoring import Flags

LEAST_SLOPE, MOST_SLOPE = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class MeanCalibration:
    """From a predicted logarithm to an expected length: ``exp(level + slope * log)``."""

    level: float = 0.0
    slope: float = 1.0

    @classmethod
    def fit(cls, logs: Floats, lengths: Floats, weight: Floats) -> Self:
        """From held-out predicted logarithms, true lengths (tokens), and how many moments each stands for.

        The slope is the one whose curve has 1 as the least-squares slope of truth on prediction; the level
        makes the totals agree. Where truth does not rise with the prediction, the mean is nearly constant.
        """
        share = weight / weight.sum()
        center = float(share @ logs)
        typical = float(share @ lengths)

        def curve(slope: float) -> Floats:
            said = np.exp(np.clip(slope * (logs - center), -30, 30))
            return np.asarray(said * (typical / float(share @ said)), dtype=np.float64)

        best, least = LEAST_SLOPE, np.inf
        for slope in np.linspace(LEAST_SLOPE, MOST_SLOPE, 79).tolist():
            off = curve(slope) - typical
            spread, together = float(share @ off**2), float(share @ (off * (lengths - typical)))
            if spread > 0 and together > 0 and abs(np.log(together / spread)) < least:
                best, least = slope, abs(np.log(together / spread))
        said = np.exp(np.clip(best * (logs - center), -30, 30))
        level = float(np.log(max(1.0, typical)) - np.log(float(share @ said)))
        return cls(level - best * center, best)

    def apply(self, logs: Floats) -> Floats:
        """Expected tokens; at least 1."""
        return np.asarray(np.exp(np.clip(self.level + self.slope * logs, 0.0, 20.0)), dtype=np.float64)

    def as_json(self) -> dict[str, float]:
        """For `from_json`."""
        return {"level": self.level, "slope": self.slope}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError."""
        return cls(float(body["level"]), float(body["slope"]))


def held_out_quantiles(errors: Floats, levels: Sequence[float], finished: "Flags | None" = None) -> Floats:
    """Quantiles of held-out errors: below each the stated share falls (split conformal prediction).

    Shape (n,). Censored errors are lower bounds: they count where the product-limit estimate (Kaplan-Meier)
    puts them.
    """
    return np.array([_product_limit_quantile(errors, level, finished) for level in levels])


def _product_limit_quantile(values: Floats, level: float, finished: "Flags | None") -> float:
    if finished is None or finished.all():
        return float(np.quantile(values, level))
    order = np.argsort(values, kind="stable")
    at_risk = np.arange(len(values), 0, -1)
    survival = np.cumprod(1.0 - finished[order] / at_risk)
    reached = np.flatnonzero(survival <= 1.0 - level)
    return float(values[order[reached[0]]] if len(reached) else values[order[-1]])
