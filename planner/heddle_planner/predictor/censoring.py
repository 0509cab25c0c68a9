"""Lengths of trajectories that were cut off: what they would have been, on average.

Dropping unfinished trajectories makes every estimate too short, since long ones are unfinished more often.
Taking them as they are does the same. Here the logarithm of a censored remaining length is replaced by its
expectation above the censoring point under the model's own normal residual (Buckley and James, Biometrika 66,
1979).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from heddle_planner.predictor.protocol import Floats

Flags = NDArray[np.bool_]


def above(bound: Floats, center: Floats, spread: Floats | float) -> Floats:
    """E[x | x > bound] for normal x."""
    standard = (bound - center) / spread
    log_density = -0.5 * standard**2 - 0.5 * np.log(2 * np.pi)
    expected = center + spread * np.exp(log_density - log_ndtr(-standard))
    return np.asarray(np.maximum(expected, bound), dtype=np.float64)


def variance_above(bound: Floats, center: Floats, spread: float) -> Floats:
    """Var[x | x > bound] for normal x."""
    standard = (bound - center) / spread
    mills = np.exp(-0.5 * standard**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(-standard))
    variance = np.clip(spread**2 * (1 + standard * mills - mills**2), 0.0, spread**2)
    return np.asarray(variance, dtype=np.float64)


def residual_spread(target: Floats, center: Floats, finished: Flags, spread: float = 1.0) -> float:
    """Standard deviation of residuals about ``center`` where some targets are only lower bounds."""
    for _ in range(20):
        squares = np.where(
            finished,
            (target - center) ** 2,
            (above(target, center, spread) - center) ** 2 + variance_above(target, center, spread),
        )
        spread = max(0.05, float(np.sqrt(squares.mean())))
    return spread


def starting_targets(target: Floats, finished: Flags) -> Floats:
    """Targets with censored ones filled in under one normal distribution for all, fitted by the EM
    algorithm.
    """
    if finished.all():
        return target
    seen = target[finished] if finished.any() else target
    center, spread = float(seen.mean()), max(0.3, float(seen.std()))
    for _ in range(50):
        filled = np.where(finished, target, above(target, np.full_like(target, center), spread))
        extra = np.where(finished, 0.0, variance_above(target, np.full_like(target, center), spread))
        center = float(filled.mean())
        spread = max(0.05, float(np.sqrt(((filled - center) ** 2 + extra).mean())))
    return np.where(finished, target, above(target, np.full_like(target, center), spread))
