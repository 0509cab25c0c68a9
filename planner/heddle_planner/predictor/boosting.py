"""Gradient-boosted remaining lengths: the default predictor.

A centre, in logarithms, is the sum of three opinions of what remains:

1. *history*: the typical whole length of such trajectories, which finished siblings sharpen;
2. *wording*: ridge regression on hashed words, where there are any;
3. *location*: boosted trees for the fourth root of the ratio of truth to (1). The root weighs the long
   ones, which decide a makespan, more than a logarithm does.

(2) and (3) are fitted side by side, and have a weight for each age, which says how much of their opinion
proved right on held-out tasks: early steps tell little, and noise must not reorder them. Of an agent that was
not in the data nothing was proved: there `History` has the word, moved by what means the same whoever the
agent is (`signs`).

*Spread*: trees for how far off the centre is; the interval's shape is that of held-out errors over it.
Unfinished trajectories count as longer than what was seen of them (`censoring`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.ages import AGES, age_weights, weights_at
from heddle_planner.predictor.calibration import MeanCalibration, held_out_quantiles
from heddle_planner.predictor.censoring import Flags, above, residual_spread, starting_targets
from heddle_planner.predictor.features import FEATURES, PROMPT_TEXT_FEATURES, StepFeatures
from heddle_planner.predictor.folds import chances, task_folds, thinned
from heddle_planner.predictor.history import History
from heddle_planner.predictor.protocol import QUANTILES, Example, Floats, Prediction, PredictorError
from heddle_planner.predictor.signs import Signs
from heddle_planner.predictor.trees import Trees
from heddle_planner.predictor.wording import Wording

FORMAT: Final = 3
FOLDS: Final = 5
MOST_ROWS: Final = 24_000
LEAST_TRAJECTORIES: Final = 8
MOST_AGENTS: Final = 4_096
_TREE_COLUMNS: Final = [place for place, name in enumerate(FEATURES) if name not in PROMPT_TEXT_FEATURES]
"""Signs of the prompt's text are the same at each step: trees would learn trajectories by heart."""
_COLUMNS: Final = len(_TREE_COLUMNS) + 1
"""And the share of the typical length that is done."""
_ROOT: Final = 4.0

_LOCATION: Final[dict[str, Any]] = {
    "num_iterations": 140,
    "num_leaves": 8,
    "learning_rate": 0.06,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.3,
    "lambda_l2": 20.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
}
_LARGE: Final = 400
"""Trajectories from which on a set bears more: trees of twice the leaves, and long trajectories that count
for more of their moments. In a small one a few long trajectories would outvote the rest."""
_LARGE_FOLDS: Final = 8
_SPREAD: Final[dict[str, Any]] = {
    "num_iterations": 30,
    "num_leaves": 4,
    "learning_rate": 0.1,
    "min_data_in_leaf": 80,
    "feature_fraction": 0.3,
    "lambda_l2": 20.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
}
_LEAST_OFF: Final = 0.1


@dataclass(slots=True)
class _Data:
    """Examples as arrays. ``target``, ``base`` and what opinions say are logarithms; an opinion is of
    ``target - base``.
    """

    numbers: Floats
    target: Floats
    base: Floats
    finished: Flags
    weight: Floats
    steps: NDArray[np.intp]
    moments: list[StepFeatures]
    told: Floats
    """What history says of the other folds' tasks, as a mean's logarithm."""
    trajectories: NDArray[np.intp]
    large: bool

    def take(self, rows: NDArray[np.bool_]) -> "_Data":
        return _Data(
            self.numbers[rows],
            self.target[rows],
            self.base[rows],
            self.finished[rows],
            self.weight[rows],
            self.steps[rows],
            [self.moments[row] for row in np.flatnonzero(rows).tolist()],
            self.told[rows],
            self.trajectories[rows],
            self.large,
        )


@dataclass(slots=True)
class Boosting:
    """`Predictor`; see the module."""

    name: ClassVar[str] = "boosting"

    _history: History = field(default_factory=History)
    _wording: Wording = field(default_factory=Wording)
    _location: Trees | None = None
    _spread: Trees | None = None
    _weights: Floats = field(default_factory=lambda: np.ones((len(AGES), 2)))
    """Of wording and location."""
    _signs: Signs = field(default_factory=Signs)
    _shape: Floats = field(default_factory=lambda: np.zeros(len(QUANTILES)))
    """Quantiles of held-out errors, in units of the predicted spread."""
    _mean: MeanCalibration = field(default_factory=MeanCalibration)
    _agents: frozenset[str] = frozenset()

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
        chance = chances(steps, MOST_ROWS)
        rows = thinned(chance, seed=3)
        kept = [examples[row] for row in rows]
        large = known >= _LARGE
        folds = task_folds([example.task for example in kept], _LARGE_FOLDS if large else FOLDS, seed=5)
        data = self._arrays(examples, kept, trajectories[rows], folds, large=large)
        self._history = History()
        self._history.fit(examples)
        self._agents = frozenset(sorted({_agent(example.features) for example in examples})[:MOST_AGENTS])
        self._wording, self._location = _fit_wording(data), _fit_location(data)
        opinions = _held_out_opinions(data, folds)
        self._weights = age_weights(data.target - data.base, opinions, data.steps, data.finished)
        center = data.base + (opinions * weights_at(self._weights, data.steps)).sum(axis=1)
        self._signs = _fit_signs(data)
        spread = residual_spread(data.target, center, data.finished)
        filled = np.where(data.finished, data.target, above(data.target, center, spread))
        self._fit_spread(data, center, filled, folds)
        lengths = np.where(data.finished, np.expm1(data.target), np.exp(filled + 0.5 * spread**2))
        stands_for = 1.0 / chance[rows] if large else np.ones(len(rows))
        self._mean = MeanCalibration.fit(center, np.asarray(lengths, dtype=np.float64), stands_for)

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """Raises PredictorError before `fit` or `load`."""
        if self._location is None or self._spread is None:
            raise PredictorError("boosting: predict before fit or load")
        if not moments:
            return Prediction(np.empty(0), np.empty(0), np.empty((0, len(QUANTILES))))
        steps = np.array([moment.steps for moment in moments], dtype=np.intp)
        base, history = self._history.told(moments)
        numbers = _for_trees(moments, base)
        opinions = np.column_stack([self._wording.predict(moments), _locate(self._location, numbers)])
        center = base + (opinions * weights_at(self._weights, steps)).sum(axis=1)
        scale = _scale(self._spread, numbers, center)
        logs = np.clip(center[:, None] + scale[:, None] * self._shape, 0.0, 20.0)
        sigma = np.clip((logs[:, -1] - logs[:, 0]) / 3.2897072539029444, 0.05, 5.0)
        said = Prediction(self._mean.apply(center), sigma, np.maximum(np.expm1(logs), 1.0))
        self._leave_strangers_to_history(said, history, moments)
        return said

    def _leave_strangers_to_history(
        self, said: Prediction, history: Prediction, moments: Sequence[StepFeatures]
    ) -> None:
        """Puts what history and signs say of unknown agents in the place of what the model does."""
        strange = np.array([_agent(moment) not in self._agents for moment in moments])
        if not strange.any():
            return
        factor = np.exp(self._signs.predict([moments[row] for row in np.flatnonzero(strange).tolist()]))
        said.mean[strange] = np.maximum(1.0, history.mean[strange] * factor)
        said.quantiles[strange] = np.maximum(1.0, history.quantiles[strange] * factor[:, None])
        said.sigma[strange] = history.sigma[strange]

    def _arrays(
        self,
        examples: Sequence[Example],
        kept: Sequence[Example],
        trajectories: NDArray[np.intp],
        folds: NDArray[np.intp],
        *,
        large: bool,
    ) -> _Data:
        _, index, counts = np.unique(trajectories, return_inverse=True, return_counts=True)
        moments = [example.features for example in kept]
        base, told = np.zeros(len(kept)), np.zeros(len(kept))
        fold_of = {example.task: int(fold) for example, fold in zip(kept, folds, strict=True)}
        whole_folds = [fold_of.get(example.task, -1) for example in examples]
        # The base of a row is the history of the other folds: else it would have seen the row's own length.
        for fold in range(int(folds.max()) + 1):
            history = History()
            history.fit([e for e, f in zip(examples, whole_folds, strict=True) if f != fold])
            here = np.flatnonzero(folds == fold)
            base[here], said = history.told([moments[row] for row in here.tolist()])
            told[here] = np.log(said.mean)
        return _Data(
            numbers=_for_trees(moments, base),
            target=np.log1p(np.array([example.remaining for example in kept], dtype=np.float64)),
            base=base,
            finished=np.array([example.finished for example in kept], dtype=np.bool_),
            # Between "every row counts alike" and "every trajectory counts alike".
            weight=np.asarray(counts[index] ** (-0.25 if large else -0.5), dtype=np.float64),
            steps=np.array([moment.steps for moment in moments], dtype=np.intp),
            moments=moments,
            told=told,
            trajectories=trajectories,
            large=large,
        )

    def _fit_spread(self, data: _Data, center: Floats, filled: Floats, folds: NDArray[np.intp]) -> None:
        """Trees for how far off ``center`` is, and the shape of what is off in their units."""
        numbers = np.column_stack([data.numbers, center])
        off = np.log(np.maximum(np.abs(filled - center), _LEAST_OFF))
        scale = np.ones(len(center))
        for fold in range(int(folds.max()) + 1):
            here, there = folds == fold, folds != fold
            trees = Trees.grow(_SPREAD, numbers[there], off[there], data.weight[there])
            scale[here] = _scale(trees, data.numbers[here], center[here])
        self._shape = held_out_quantiles((data.target - center) / scale, QUANTILES, data.finished)
        self._spread = Trees.grow(_SPREAD, numbers, off, data.weight)

    def save(self, folder: Path) -> None:
        """``boosting.json``, ``history.json``, ``wording.npy`` and LightGBM's text for each booster."""
        if self._location is None or self._spread is None:
            raise PredictorError("boosting: save before fit")
        self._history.save(folder)
        body = {
            "format": FORMAT,
            "features": list(FEATURES),
            "levels": list(QUANTILES),
            "ages": list(AGES),
            "weights": self._weights.tolist(),
            "shape": self._shape.tolist(),
            "mean": self._mean.as_json(),
            "agents": sorted(self._agents),
            "signs": self._signs.as_json(),
        }
        (folder / "boosting.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        self._wording.save(folder / "wording.npy")
        self._location.save(folder / "location.txt")
        self._spread.save(folder / "spread.txt")

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
                _location=Trees.load(folder / "location.txt", _COLUMNS),
                _spread=Trees.load(folder / "spread.txt", _COLUMNS + 1),
                _weights=_numbers(body["weights"], (len(AGES), 2)),
                _shape=_numbers(body["shape"], (len(QUANTILES),)),
                _mean=MeanCalibration.from_json(body["mean"]),
                _agents=frozenset(map(str, body["agents"])),
                _signs=Signs.from_json(body["signs"]),
            )
        except (OSError, KeyError, TypeError, AttributeError) as error:
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        except ValueError as error:
            if isinstance(error, PredictorError):
                raise
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error


def _agent(moment: StepFeatures) -> str:
    return f"{moment.origin.domain}/{moment.origin.model}"


def _for_trees(moments: Sequence[StepFeatures], base: Floats) -> Floats:
    numbers = np.stack([moment.numbers for moment in moments])[:, _TREE_COLUMNS]
    done = np.log1p(np.array([moment.done_tokens for moment in moments], dtype=np.float64))
    return np.column_stack([numbers, done - base])


def _held_out_opinions(data: _Data, folds: NDArray[np.intp]) -> Floats:
    """What wording and location say of rows that they were not fitted to. Shape (n, 2)."""
    said = np.zeros((len(data.target), 2))
    for fold in range(int(folds.max()) + 1):
        here = folds == fold
        held, rest = data.take(here), data.take(~here)
        said[here, 0] = _fit_wording(rest).predict(held.moments)
        said[here, 1] = _locate(_fit_location(rest), held.numbers)
    return said


def _fit_signs(data: _Data) -> Signs:
    """Of moments whose end is known."""
    known = data.take(data.finished)
    names = np.array([_agent(moment) for moment in known.moments], dtype=np.str_)
    agents = np.unique(names, return_inverse=True)[1].astype(np.intp)
    return Signs.fit(known.moments, known.target - known.told, agents, known.trajectories)


def _fit_wording(data: _Data) -> Wording:
    target = starting_targets(data.target, data.finished)
    return Wording.fit(data.moments, target - data.base, data.weight)


def _fit_location(data: _Data) -> Trees:
    """Censored targets are filled in and the fit repeated."""
    target = starting_targets(data.target, data.finished)
    settings = {**_LOCATION, "num_leaves": 16} if data.large else _LOCATION
    rounds = 1 if data.finished.all() else 3
    for turn in range(rounds):
        goal = np.exp((target - data.base) / _ROOT)
        trees = Trees.grow(settings, data.numbers, goal, data.weight)
        if turn + 1 < rounds:
            center = data.base + _locate(trees, data.numbers)
            spread = residual_spread(data.target, center, data.finished)
            target = np.where(data.finished, data.target, above(data.target, center, spread))
    return trees


def _locate(trees: Trees, numbers: Floats) -> Floats:
    return _ROOT * np.log(np.maximum(trees.predict(numbers), 0.05))


def _scale(trees: Trees, numbers: Floats, center: Floats) -> Floats:
    off = trees.predict(np.column_stack([numbers, center]))
    return np.exp(np.clip(off, -3.0, 3.0))


def _numbers(values: Any, shape: tuple[int, ...]) -> Floats:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise PredictorError(f"boosting.json: {values!r} must be finite numbers of shape {shape}")
    return array
