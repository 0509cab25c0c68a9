"""The static baseline: the length that the prompt alone suggests.

Ridge regression of the logarithm of the whole length on what is known before the first step: prompt tokens
and the signs of its text. What remains later is that length given what was generated, as in `history`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from heddle_planner.predictor.features import FEATURES, StepFeatures
from heddle_planner.predictor.history import LEAST_SPREAD, PRIOR, remaining_of_lognormal
from heddle_planner.predictor.protocol import Example, Floats, Prediction, PredictorError

PROMPT_FEATURES: Final = ("log_prompt", "log_prompt_text", "prompt_items", "prompt_code", "prompt_questions")
_COLUMNS: Final = [FEATURES.index(name) for name in PROMPT_FEATURES]
RIDGE: Final = 5.0


class PromptOnly:
    """`Predictor` that looks at the prompt."""

    name: ClassVar[str] = "prompt_only"

    def __init__(self) -> None:
        count = len(PROMPT_FEATURES)
        self._center: Floats = np.zeros(count)
        self._scale: Floats = np.ones(count)
        self._slopes: Floats = np.zeros(count)
        self._level, self._spread = PRIOR

    def fit(self, examples: Sequence[Example]) -> None:
        """From the moments before the first step of finished trajectories."""
        first = [example for example in examples if example.features.steps == 0 and example.finished]
        if not first:
            self._slopes = np.zeros(len(PROMPT_FEATURES))
            self._level, self._spread = PRIOR
            return
        numbers = self._numbers([example.features for example in first])
        logs = np.log(np.maximum([example.remaining for example in first], 1.0))
        self._center = np.asarray(numbers.mean(axis=0), dtype=np.float64)
        spread = numbers.std(axis=0)
        self._scale = np.asarray(np.where(spread > 1e-9, spread, 1.0), dtype=np.float64)
        standard = (numbers - self._center) / self._scale
        self._level = float(logs.mean())
        slopes = np.linalg.solve(
            standard.T @ standard + RIDGE * np.eye(len(PROMPT_FEATURES)), standard.T @ (logs - self._level)
        )
        self._slopes = np.asarray(slopes, dtype=np.float64)
        self._spread = max(LEAST_SPREAD, float((logs - self._level - standard @ slopes).std()))

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """The length's distribution given what was generated already."""
        standard = np.clip((self._numbers(moments) - self._center) / self._scale, -4.0, 4.0)
        means = self._level + standard @ self._slopes
        done = np.array([moment.done_tokens for moment in moments], dtype=np.float64)
        return remaining_of_lognormal(means, np.full(len(moments), self._spread), done)

    @staticmethod
    def _numbers(moments: Sequence[StepFeatures]) -> Floats:
        columns = [moment.numbers[_COLUMNS] for moment in moments]
        return np.nan_to_num(np.array(columns, dtype=np.float64).reshape(len(moments), len(_COLUMNS)))

    def save(self, folder: Path) -> None:
        """``prompt_only.json``."""
        body = {
            "features": list(PROMPT_FEATURES),
            "center": self._center.tolist(),
            "scale": self._scale.tolist(),
            "slopes": self._slopes.tolist(),
            "level": self._level,
            "spread": self._spread,
        }
        (folder / "prompt_only.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises PredictorError."""
        path = folder / "prompt_only.json"
        loaded = cls()
        try:
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if body["features"] != list(PROMPT_FEATURES):
                raise PredictorError(f"{path}: features: are not those of this version; train again")
            loaded._center, loaded._scale, loaded._slopes = (
                np.array([float(value) for value in body[name]]) for name in ("center", "scale", "slopes")
            )
            loaded._level, loaded._spread = float(body["level"]), float(body["spread"])
        except (OSError, KeyError, TypeError) as error:
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        except ValueError as error:
            if isinstance(error, PredictorError):
                raise
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        return loaded
