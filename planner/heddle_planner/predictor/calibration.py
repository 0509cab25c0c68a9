"""Makes predictions right on average, and intervals hold what they say, from held-out predictions.

Few parameters, since a set of a hundred trajectories must do: the mean is ``exp(level + slope * log
estimate)``, by quasi-likelihood so that the totals agree; each quantile is moved by one number (split
conformal).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from heddle_planner.predictor.censoring import Flags
from heddle_planner.predictor.protocol import Floats

LEAST_SLOPE, MOST_SLOPE = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class MeanCalibration:
    """From a predicted logarithm to an expected length."""

    level: float = 0.0
    slope: float = 1.0
    offset: float = 0.0
    gain: float = 1.0

    @classmethod
    def fit(cls, logs: Floats, lengths: Floats) -> Self:
        """From held-out predicted logarithms and true lengths (tokens)."""
        lengths = np.maximum(lengths, 1.0)
        slope, center = 1.0, float(logs.mean())
        level = float(np.log(lengths.mean()) - np.log(np.exp(logs - center).mean()))
        for _ in range(50):
            mean = np.exp(np.clip(level + slope * (logs - center), -20, 20))
            gradient = np.array([(lengths - mean).sum(), ((lengths - mean) * (logs - center)).sum()])
            curvature = np.array(
                [
                    [mean.sum(), (mean * (logs - center)).sum()],
                    [(mean * (logs - center)).sum(), (mean * (logs - center) ** 2).sum()],
                ]
            )
            # A ridge towards slope 1, as of ten lengths: it decides where nothing else does.
            ridge = 10.0 * float(lengths.mean()) * 0.01
            curvature[1, 1] += ridge
            gradient[1] += ridge * (1.0 - slope)
            step = np.clip(np.linalg.solve(curvature + 1e-9 * np.eye(2), gradient), -1.0, 1.0)
            level, slope = level + float(step[0]), float(np.clip(slope + step[1], LEAST_SLOPE, MOST_SLOPE))
            if np.abs(step).max() < 1e-9:
                break
        bare = cls(level - slope * center, slope)
        mean = bare.apply(logs)
        spread = float(mean.var())
        gain = (
            float(((mean - mean.mean()) * (lengths - lengths.mean())).mean() / spread) if spread > 0 else 1.0
        )
        gain = float(np.clip(gain, 0.5, 1.5))
        return cls(bare.level, bare.slope, float(lengths.mean() - gain * mean.mean()), gain)

    def apply(self, logs: Floats) -> Floats:
        """Expected tokens; at least 1."""
        # What the straight line would take below a tenth of the curve stays at a tenth.
        curve = np.exp(np.clip(self.level + self.slope * logs, 0.0, 20.0))
        line = self.offset + self.gain * curve
        return np.maximum(np.maximum(line, 0.1 * curve), 1.0)

    def as_json(self) -> dict[str, float]:
        """For `from_json`."""
        return {"level": self.level, "slope": self.slope, "offset": self.offset, "gain": self.gain}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError."""
        return cls(*(float(body[name]) for name in ("level", "slope", "offset", "gain")))


def conformal_shifts(
    residuals: Floats, quantiles: Floats, levels: Sequence[float], finished: Flags | None = None
) -> Floats:
    """What to add to each predicted quantile of ``residuals`` so that the stated share falls below it.

    Shapes (n,), (n, levels). Censored residuals are lower bounds: they count where the product-limit estimate
    (Kaplan-Meier) puts them.
    """
    return np.array(
        [
            _product_limit_quantile(residuals - quantiles[:, column], level, finished)
            for column, level in enumerate(levels)
        ]
    )


def _product_limit_quantile(values: Floats, level: float, finished: Flags | None) -> float:
    if finished is None or finished.all():
        return float(np.quantile(values, level))
    order = np.argsort(values, kind="stable")
    at_risk = np.arange(len(values), 0, -1)
    survival = np.cumprod(1.0 - finished[order] / at_risk)
    reached = np.flatnonzero(survival <= 1.0 - level)
    return float(values[order[reached[0]]] if len(reached) else values[order[-1]])
