"""Boosted regression trees: LightGBM grows them, `heddle_core.Forest` is asked.

The forest says what LightGBM would, to the last bit, in a tenth of the time, and a planner that only serves
loads no LightGBM.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from heddle_core import Forest

from heddle_planner.predictor.protocol import Floats, PredictorError

# One thread: with more, LightGBM's spin on a shared machine, and a fit is small.
_ALWAYS: Final[dict[str, Any]] = {"num_threads": 1, "verbosity": -1, "seed": 7, "deterministic": True}


@dataclass(frozen=True, slots=True)
class Trees:
    """A sum of trees. ``text`` is LightGBM's own format."""

    text: str
    forest: Forest

    @classmethod
    def grow(cls, settings: dict[str, Any], numbers: Floats, target: Floats, weight: Floats) -> Self:
        """By least squares, with LightGBM's ``settings``. Shapes (n, features), (n,), (n,)."""
        # Imported late: a planner with a fitted model does without.
        import lightgbm

        # A small set needs leaves that it can fill.
        leaf = min(settings["min_data_in_leaf"], max(3, len(target) // 12))
        every = {**_ALWAYS, **settings, "objective": "l2", "min_data_in_leaf": leaf}
        fitting = {**_ALWAYS, "feature_pre_filter": False}
        booster = lightgbm.train(every, lightgbm.Dataset(numbers, target, weight=weight, params=fitting))
        text = str(booster.model_to_string())
        return cls(text, Forest(text))

    def predict(self, numbers: Floats) -> Floats:
        """The trees' sum for each row; NaN is what is not known. Shapes (n, features), (n,)."""
        rows = np.ascontiguousarray(numbers, dtype=np.float64)
        return np.array(self.forest.predict(rows.data), dtype=np.float64)

    def save(self, path: Path) -> None:
        """As LightGBM's text. Raises OSError."""
        path.write_text(self.text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path, features: int) -> Self:
        """Raises OSError, and PredictorError for what is no forest of so many features."""
        text = path.read_text(encoding="utf-8")
        try:
            forest = Forest(text)
        except ValueError as error:
            raise PredictorError(f"{path}: cannot be read: {error}") from error
        if forest.features != features:
            raise PredictorError(f"{path}: has {forest.features} features, not {features}; train again")
        return cls(text, forest)
