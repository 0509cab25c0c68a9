"""How far forecasts were off of late, and whether that has changed."""

import math
from typing import Final

ERRORS_LONG: Final = 256.0
ERRORS_SHORT: Final = 24.0
"""Finished trajectories that the two running errors look back over."""
JUMP: Final = 1.6
"""The error has jumped when the short one is this many times the long one."""


class RunningError:
    """Mean square of the logarithm of actual over forecast, long and short; the root is the predictor's
    sigma.
    """

    def __init__(self) -> None:
        self._long = self._short = 0.0
        self.count = 0

    def add(self, forecast: float, actual: float) -> None:
        ratio = math.log(max(1.0, actual) / max(1.0, forecast))
        square = ratio * ratio
        self.count += 1
        self._long += (square - self._long) / min(self.count, ERRORS_LONG)
        self._short += (square - self._short) / min(self.count, ERRORS_SHORT)

    @property
    def sigma(self) -> float | None:
        """None while too few are over."""
        return math.sqrt(self._long) if self.count >= 8 else None

    @property
    def has_jumped(self) -> bool:
        return self.count >= 2 * ERRORS_SHORT and self._short > JUMP * JUMP * max(self._long, 0.01)

    def settle(self) -> None:
        """The jump was acted upon: what is normal now is the new error."""
        self._long = self._short
