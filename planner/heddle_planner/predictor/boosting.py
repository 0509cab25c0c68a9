"""Gradient-boosted quantiles of the remaining length: the default predictor.

Four layers, each fitted to what the ones before got wrong on tasks they had not seen:

1. *history*: a lognormal length given what was generated, which finished siblings sharpen;
2. *wording*: ridge regression on hashed words, where there is text;
3. *location*: boosted trees on the logarithm of the ratio of truth to (1) and (2);
4. *quantiles*: boosted quantiles of what is still wrong, shifted to hold what they say (`calibration`).

Layers 2 and 3 have a weight for each age, which says how much of their opinion proved right on held-out
tasks: early steps tell little, and noise must not reorder them.

Unfinished trajectories count as longer than what was seen of them (`censoring`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import lightgbm
import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.calibration import MeanCalibration, conformal_shifts
from heddle_planner.predictor.censoring import Flags, above, residual_spread, starting_targets
from heddle_planner.predictor.cues import PROMPT_TEXT_FEATURES
from heddle_planner.predictor.features import FEATURES, StepFeatures
from heddle_planner.predictor.folds import task_folds, thinned
from heddle_planner.predictor.history import History
from heddle_planner.predictor.protocol import QUANTILES, Example, Floats, Prediction, PredictorError
from heddle_planner.predictor.wording import Wording

FORMAT: Final = 1
FOLDS: Final = 5
MOST_ROWS: Final = 24_000
LEAST_TRAJECTORIES: Final = 8
_TREE_COLUMNS: Final = [place for place, name in enumerate(FEATURES) if name not in PROMPT_TEXT_FEATURES]
"""Signs of the prompt's text are the same at each step: trees would learn trajectories by heart."""
AGES: Final = (0, 1, 2, 4, 8, 16)
"""First steps of the ages that have a weight of their own."""
_WEIGHT_PRIOR: Final = 20.0
"""Rows that pull an age's weight towards that of the age after it."""

_LOCATION: Final[dict[str, Any]] = {
    "objective": "l2",
    "num_leaves": 8,
    "learning_rate": 0.06,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.3,
    "lambda_l2": 20.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
}
_LOCATION_TREES: Final = 160
_QUANTILE: Final[dict[str, Any]] = {
    "objective": "quantile",
    "num_leaves": 4,
    "learning_rate": 0.1,
    "min_data_in_leaf": 80,
    "feature_fraction": 0.3,
    "lambda_l2": 10.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
}
_QUANTILE_TREES: Final = 30
# One thread: with more, LightGBM's spin on a shared machine, and a batch is small.
_ALWAYS: Final[dict[str, Any]] = {"num_threads": 1, "verbosity": -1, "seed": 7, "deterministic": True}


@dataclass(slots=True)
class _Data:
    """Examples as arrays; ``target`` and ``base`` are logarithms."""

    numbers: Floats
    target: Floats
    base: Floats
    finished: Flags
    weight: Floats
    steps: NDArray[np.intp]
    words: list[NDArray[np.int64] | None]

    def take(self, rows: NDArray[Any]) -> "_Data":
        return _Data(
            self.numbers[rows],
            self.target[rows],
            self.base[rows],
            self.finished[rows],
            self.weight[rows],
            self.steps[rows],
            [self.words[row] for row in np.arange(len(self.words))[rows].tolist()],
        )


@dataclass(slots=True)
class Boosting:
    """`Predictor`; see the module."""

    name: ClassVar[str] = "boosting"

    _history: History = field(default_factory=History)
    _wording: Wording = field(default_factory=Wording)
    _location: lightgbm.Booster | None = None
    _word_weights: Floats = field(default_factory=lambda: np.zeros(len(AGES)))
    _weights: Floats = field(default_factory=lambda: np.ones(len(AGES)))
    _quantiles: list[lightgbm.Booster] = field(default_factory=list)
    _shifts: Floats = field(default_factory=lambda: np.zeros(len(QUANTILES)))
    _mean: MeanCalibration = field(default_factory=MeanCalibration)

    def fit(self, examples: Sequence[Example]) -> None:
        """Raises PredictorError for fewer than `LEAST_TRAJECTORIES` trajectories or less than two tasks."""
        trajectories = np.array([example.trajectory for example in examples], dtype=np.intp)
        known = len(np.unique(trajectories))
        if known < LEAST_TRAJECTORIES or len({example.task for example in examples}) < 2:
            raise PredictorError(
                f"boosting: {known} trajectories are too few to learn from;"
                f" {LEAST_TRAJECTORIES} of two tasks at least are needed, or use --model history"
            )
        steps = np.array([example.features.steps for example in examples], dtype=np.intp)
        rows = thinned(steps, trajectories, MOST_ROWS, seed=3)
        kept = [examples[row] for row in rows]
        folds = task_folds([example.task for example in kept], FOLDS, seed=5)
        whole_folds = _folds_of_all(examples, kept, folds)
        data = self._arrays(kept, trajectories[rows])
        # The base of a row is the history of the other folds: else it would have seen the row's own length.
        for fold in range(int(folds.max()) + 1):
            history = History()
            history.fit([e for e, f in zip(examples, whole_folds, strict=True) if f != fold])
            here = folds == fold
            data.base[here] = _base(history, [kept[row].features for row in np.flatnonzero(here)])
        self._history = History()
        self._history.fit(examples)
        self._read_words(data, folds)
        held = self._held_out_location(data, folds)
        self._weights = age_weights(data.target - data.base, held, data.steps, data.finished)
        center = data.base + held * weights_at(self._weights, data.steps)
        spread = residual_spread(data.target, center, data.finished)
        filled = np.where(data.finished, data.target, above(data.target, center, spread))
        residual = filled - center
        outer = np.column_stack([data.numbers, center])
        said = np.zeros((len(kept), len(QUANTILES)))
        for fold in range(int(folds.max()) + 1):
            here, there = folds == fold, folds != fold
            boosters = _fit_quantiles(outer[there], residual[there], data.weight[there])
            said[here] = _say(boosters, outer[here])
        self._shifts = conformal_shifts(data.target - center, said, QUANTILES, data.finished)
        self._quantiles = _fit_quantiles(outer, residual, data.weight)
        self._location = _fit_location(data)
        lengths = np.where(data.finished, np.expm1(data.target), np.exp(filled + 0.5 * spread**2))
        self._mean = MeanCalibration.fit(center, np.asarray(lengths, dtype=np.float64))

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """Raises PredictorError before `fit` or `load`."""
        if self._location is None:
            raise PredictorError("boosting: predict before fit or load")
        if not moments:
            return Prediction(np.empty(0), np.empty(0), np.empty((0, len(QUANTILES))))
        numbers = np.stack([moment.numbers for moment in moments])
        steps = np.array([moment.steps for moment in moments], dtype=np.intp)
        base = _base(self._history, moments)
        words = self._wording.predict([moment.words for moment in moments])
        base += words * weights_at(self._word_weights, steps)
        numbers = np.column_stack([_for_trees(numbers), words])
        trees = np.asarray(self._location.predict(numbers, num_threads=1), dtype=np.float64)
        center = base + trees * weights_at(self._weights, steps)
        logs = center[:, None] + _say(self._quantiles, np.column_stack([numbers, center])) + self._shifts
        logs = np.clip(np.sort(logs, axis=1), 0.0, 20.0)
        sigma = np.clip((logs[:, -1] - logs[:, 0]) / 3.2897072539029444, 0.05, 5.0)
        return Prediction(self._mean.apply(center), sigma, np.maximum(np.expm1(logs), 1.0))

    def _arrays(self, examples: Sequence[Example], trajectories: NDArray[np.intp]) -> _Data:
        _, index, counts = np.unique(trajectories, return_inverse=True, return_counts=True)
        finished = np.array([example.finished for example in examples], dtype=np.bool_)
        target = np.log1p(np.array([example.remaining for example in examples], dtype=np.float64))
        return _Data(
            numbers=_for_trees(np.stack([example.features.numbers for example in examples])),
            target=target,
            base=np.zeros(len(examples)),
            finished=finished,
            # Between "every row counts alike" and "every trajectory counts alike".
            weight=1.0 / np.sqrt(counts[index]),
            steps=np.array([example.features.steps for example in examples], dtype=np.intp),
            words=[example.features.words for example in examples],
        )

    def _read_words(self, data: _Data, folds: NDArray[np.intp]) -> None:
        """Fits the wording, and puts what it says of held-out rows into ``data``'s base and last column."""
        said = np.zeros(len(data.target))
        goal = starting_targets(data.target, data.finished) - data.base
        for fold in range(int(folds.max()) + 1):
            here = folds == fold
            there = data.take(~here)
            wording = Wording.fit(there.words, goal[~here], there.weight)
            said[here] = wording.predict(data.take(here).words)
        self._wording = Wording.fit(data.words, goal, data.weight)
        self._word_weights = age_weights(data.target - data.base, said, data.steps, data.finished)
        data.base += said * weights_at(self._word_weights, data.steps)
        data.numbers = np.column_stack([data.numbers, said])

    def _held_out_location(self, data: _Data, folds: NDArray[np.intp]) -> Floats:
        held = np.zeros(len(data.target))
        for fold in range(int(folds.max()) + 1):
            here = folds == fold
            booster = _fit_location(data.take(~here))
            held[here] = np.asarray(booster.predict(data.numbers[here], num_threads=1))
        return held

    def save(self, folder: Path) -> None:
        """``boosting.json``, ``history.json`` and LightGBM's text for each booster."""
        if self._location is None:
            raise PredictorError("boosting: save before fit")
        self._history.save(folder)
        body = {
            "format": FORMAT,
            "features": list(FEATURES),
            "levels": list(QUANTILES),
            "ages": list(AGES),
            "word_weights": self._word_weights.tolist(),
            "weights": self._weights.tolist(),
            "shifts": self._shifts.tolist(),
            "mean": self._mean.as_json(),
        }
        (folder / "boosting.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        self._wording.save(folder / "wording.npy")
        (folder / "location.txt").write_text(_text(self._location), encoding="utf-8")
        for level, booster in zip(QUANTILES, self._quantiles, strict=True):
            (folder / _quantile_file(level)).write_text(_text(booster), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises PredictorError; a model of other features or another format is refused by name."""
        path = folder / "boosting.json"
        try:
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for name, wanted in (
                ("format", FORMAT),
                ("features", list(FEATURES)),
                ("levels", list(QUANTILES)),
                ("ages", list(AGES)),
            ):
                if body[name] != wanted:
                    raise PredictorError(f"{path}: {name}: is not that of this version; train again")
            return cls(
                _history=History.load(folder),
                _wording=Wording.load(folder / "wording.npy"),
                _location=_booster(folder / "location.txt", len(_TREE_COLUMNS) + 1),
                _word_weights=_numbers(body["word_weights"], len(AGES)),
                _weights=_numbers(body["weights"], len(AGES)),
                _quantiles=[
                    _booster(folder / _quantile_file(level), len(_TREE_COLUMNS) + 2) for level in QUANTILES
                ],
                _shifts=_numbers(body["shifts"], len(QUANTILES)),
                _mean=MeanCalibration.from_json(body["mean"]),
            )
        except (OSError, KeyError, TypeError, AttributeError, lightgbm.basic.LightGBMError) as error:
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        except ValueError as error:
            if isinstance(error, PredictorError):
                raise
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error


def age_of(steps: NDArray[np.intp]) -> NDArray[np.intp]:
    """Index in `AGES` of each number of steps."""
    return np.searchsorted(np.array(AGES), steps, side="right") - 1


def weights_at(weights: Floats, steps: NDArray[np.intp]) -> Floats:
    """Each row's weight."""
    return np.asarray(weights[age_of(steps)], dtype=np.float64)


def age_weights(wanted: Floats, said: Floats, steps: NDArray[np.intp], finished: Flags) -> Floats:
    """How much of ``said`` to believe at each age, by least squares on held-out rows; in 0..1.2.

    From the oldest age back: an age with few rows leans on the one after it. Censored rows are left out.
    """
    ages = age_of(steps)
    weights = np.ones(len(AGES))
    before = 1.0
    overall = max(1e-9, float((said**2).mean()))
    for age in range(len(AGES) - 1, -1, -1):
        here = (ages == age) & finished
        x, y = said[here], wanted[here]
        if len(x):
            x, y = x - x.mean(), y - y.mean()
        pull = _WEIGHT_PRIOR * overall
        weights[age] = np.clip((float(x @ y) + pull * before) / (float(x @ x) + pull), 0.0, 1.2)
        before = float(weights[age])
    return weights


def _folds_of_all(examples: Sequence[Example], kept: Sequence[Example], folds: NDArray[np.intp]) -> list[int]:
    by_task = {example.task: int(fold) for example, fold in zip(kept, folds, strict=True)}
    return [by_task.get(example.task, -1) for example in examples]


def _for_trees(numbers: Floats) -> Floats:
    return numbers[:, _TREE_COLUMNS]


def _base(history: History, moments: Sequence[StepFeatures]) -> Floats:
    return np.log1p(history.predict(moments).quantiles[:, 2])


def _fit_location(data: _Data) -> lightgbm.Booster:
    """Trees for the logarithm of truth over base; censored targets are filled in and the fit repeated."""
    target = starting_targets(data.target, data.finished)
    rounds = 1 if data.finished.all() else 3
    for turn in range(rounds):
        booster = _train(_LOCATION, _LOCATION_TREES, data.numbers, target - data.base, data.weight)
        if turn + 1 < rounds:
            center = data.base + np.asarray(booster.predict(data.numbers, num_threads=1))
            spread = residual_spread(data.target, center, data.finished)
            target = np.where(data.finished, data.target, above(data.target, center, spread))
    return booster


def _fit_quantiles(numbers: Floats, residual: Floats, weight: Floats) -> list[lightgbm.Booster]:
    return [
        _train({**_QUANTILE, "alpha": level}, _QUANTILE_TREES, numbers, residual, weight)
        for level in QUANTILES
    ]


def _say(boosters: Sequence[lightgbm.Booster], numbers: Floats) -> Floats:
    return np.column_stack([booster.predict(numbers, num_threads=1) for booster in boosters])


def _train(
    settings: dict[str, Any], trees: int, numbers: Floats, target: Floats, weight: Floats
) -> lightgbm.Booster:
    rows = len(target)
    # A small set needs leaves that it can fill.
    fitting = {"min_data_in_leaf": min(settings["min_data_in_leaf"], max(3, rows // 12))}
    data = lightgbm.Dataset(numbers, target, weight=weight, params={**_ALWAYS, "feature_pre_filter": False})
    return lightgbm.train({**_ALWAYS, **settings, **fitting}, data, num_boost_round=trees)


def _text(booster: lightgbm.Booster) -> str:
    text = booster.model_to_string()
    return text if isinstance(text, str) else str(text)


def _quantile_file(level: float) -> str:
    return f"quantile_{round(100 * level):02d}.txt"


def _booster(path: Path, features: int) -> lightgbm.Booster:
    booster = lightgbm.Booster(model_str=path.read_text(encoding="utf-8"))
    if booster.num_feature() != features:
        raise PredictorError(f"{path}: has {booster.num_feature()} features, not {features}; train again")
    return booster


def _numbers(values: list[float], count: int) -> Floats:
    array = np.array([float(value) for value in values])
    if len(array) != count or not np.isfinite(array).all():
        raise PredictorError(f"boosting.json: {values!r} must be {count} finite numbers")
    return array
