"""What every predictor of remaining length does.

Lengths are output tokens still to come. A prediction is made of a `StepFeatures`: one trajectory at one
moment, before its first step or in a tool gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.features import StepFeatures

Floats = NDArray[np.float64]

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of `Prediction.quantiles`: the median, and the bounds of the 50 % and 90 % intervals."""


class PredictorError(ValueError):
    """A predictor that cannot be loaded, or data that it cannot be fitted to; the message names file and
    field.
    """


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predictions of a batch, in its order."""

    mean: Floats
    """Expected output tokens still to come; finite, at least 1. Shape (n,)."""
    sigma: Floats
    """Standard deviation of the logarithm of the remaining length, as the decision core takes it. Shape
    (n,).
    """
    quantiles: Floats
    """Remaining tokens at `QUANTILES`, never falling along a row. Shape (n, len(QUANTILES))."""

    def __len__(self) -> int:
        return len(self.mean)


@dataclass(frozen=True, slots=True)
class Example:
    """A moment and what came of it.

    ``remaining`` is exact where ``finished``; else the trajectory was cut off and its remaining length is at
    least this. ``task`` keeps samples of one prompt together in folds; ``trajectory`` numbers the trajectory.
    """

    features: StepFeatures
    remaining: float
    task: str
    trajectory: int
    finished: bool = True


class Predictor(Protocol):
    """A model of remaining lengths. `predict` may be called from any thread once fitted."""

    name: ClassVar[str]

    def fit(self, examples: Sequence[Example]) -> None:
        """Learns from all examples, forgetting earlier ones. Raises PredictorError where there are too
        few.
        """

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """One row a moment."""

    def save(self, folder: Path) -> None:
        """Writes files that `load` reads: JSON and text, never pickle."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises PredictorError where the files are not those of this predictor."""


def lognormal(mean: Floats, sigma: Floats) -> Prediction:
    """A prediction whose remaining length is lognormal with that mean and spread of the logarithm."""
    center = np.log(np.maximum(mean, 1.0)) - sigma**2 / 2
    normal = np.array([-1.6448536269514722, -0.6744897501960817, 0.0, 0.6744897501960817, 1.6448536269514722])
    quantiles = np.exp(center[:, None] + sigma[:, None] * normal[None, :])
    return Prediction(mean=np.maximum(mean, 1.0), sigma=sigma, quantiles=np.maximum(quantiles, 1.0))
