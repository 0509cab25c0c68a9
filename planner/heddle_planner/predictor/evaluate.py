"""Evaluation beside the baselines: after so many steps, by progress, over all moments.

A set that the model was trained on is evaluated by task folds: the same kind of model is fitted to the other
folds of that set, so no task is on both sides. A set it never saw is predicted as it is. Moments are those of
`examples`: of siblings, only those that had finished by then are looked at.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.folds import task_folds
from heddle_planner.predictor.models import BASELINES, TrainedModel, examples_of
from heddle_planner.predictor.protocol import Example, Floats, Prediction, Predictor
from heddle_planner.predictor.records import RecordedSet
from heddle_planner.predictor.scores import Scores, score

FOLDS: Final = 5
AFTER_STEPS: Final = (0, 1, 2, 4, 8)
DECILES: Final = 10
BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class Held:
    """Predictions of moments that their model had not seen. ``fold``: the model that made each;
    ``trajectory``: its number.
    """

    truth: Floats
    steps: NDArray[np.intp]
    progress: Floats
    """Share of the trajectory's output that was done, in 0..1."""
    fold: NDArray[np.intp]
    trajectory: NDArray[np.intp]
    said: Prediction

    def scores(self, rows: NDArray[np.bool_] | slice = slice(None)) -> Scores:
        """Of some rows."""
        part = Prediction(self.said.mean[rows], self.said.sigma[rows], self.said.quantiles[rows])
        return score(self.truth[rows], part, self.fold[rows])


def evaluate(
    model: TrainedModel, recorded: RecordedSet, *, folds: int = FOLDS, seed: int = 0
) -> dict[str, Held]:
    """Held-out predictions of the model and the baselines, by name. Unfinished trajectories are left out:
    nobody knows their truth.
    """
    examples = [example for example in examples_of([recorded]) if example.finished]
    fixed: list[Predictor] = [model.predictor]
    fixed += [baseline for baseline in model.baselines if baseline.name != model.predictor.name]
    if not model.has_seen(recorded):
        fold = np.zeros(len(examples), dtype=np.intp)
        return {one.name: _held(examples, fold, _predict(one, examples)) for one in fixed}
    fold = task_folds([example.task for example in examples], folds, seed)
    kinds: list[Callable[[], Predictor]] = [type(model.predictor)]
    kinds += [baseline for baseline in BASELINES if baseline.name != model.predictor.name]
    return {
        one.name: _held(examples, fold, _by_folds(kind, examples, fold))
        for one, kind in zip(fixed, kinds, strict=True)
    }


def report(held: dict[str, Held]) -> dict[str, Any]:
    """``{model: {"overall", "after_step": {"0", ...}, "by_progress": {"0", ..., "9"}}}``."""
    body: dict[str, Any] = {}
    for name, one in held.items():
        tenth = np.minimum((one.progress * DECILES).astype(np.intp), DECILES - 1)
        body[name] = {
            "overall": one.scores(),
            "after_step": {str(step): one.scores(one.steps == step) for step in AFTER_STEPS},
            "by_progress": {str(part): one.scores(tenth == part) for part in range(DECILES)},
        }
    return body


def _by_folds(
    kind: Callable[[], Predictor], examples: Sequence[Example], fold: NDArray[np.intp]
) -> Prediction:
    parts: list[tuple[NDArray[np.intp], Prediction]] = []
    for number in np.unique(fold).tolist():
        here = np.flatnonzero(fold == number)
        predictor = kind()
        predictor.fit([examples[row] for row in np.flatnonzero(fold != number).tolist()])
        parts.append((here, _predict(predictor, [examples[row] for row in here.tolist()])))
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    together = _joined(said for _, said in parts)
    return Prediction(together.mean[order], together.sigma[order], together.quantiles[order])


def _predict(predictor: Predictor, examples: Sequence[Example]) -> Prediction:
    return _joined(
        predictor.predict([example.features for example in examples[start : start + BATCH]])
        for start in range(0, len(examples), BATCH)
    )


def _joined(parts: Iterable[Prediction]) -> Prediction:
    found = list(parts)
    return Prediction(
        np.concatenate([part.mean for part in found]),
        np.concatenate([part.sigma for part in found]),
        np.concatenate([part.quantiles for part in found]),
    )


def _held(examples: Sequence[Example], fold: NDArray[np.intp], said: Prediction) -> Held:
    truth = np.array([example.remaining for example in examples])
    done = np.array([example.features.done_tokens for example in examples], dtype=np.float64)
    steps = np.array([example.features.steps for example in examples], dtype=np.intp)
    trajectory = np.array([example.trajectory for example in examples], dtype=np.intp)
    return Held(truth, steps, done / np.maximum(truth + done, 1.0), fold, trajectory, said)
