"""Trained predictors in folders: what each holds, which data it has seen, how it is loaded.

DIR/model.json        name, what it was trained on (for people, and to keep evaluation honest)
DIR/<its files>       of the predictor itself
DIR/baselines/        `history` and `prompt_only`, fitted to the same data
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle_planner.predictor.boosting import Boosting
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.history import History
from heddle_planner.predictor.observations import Trajectory
from heddle_planner.predictor.prompt_only import PromptOnly
from heddle_planner.predictor.protocol import Example, Predictor, PredictorError
from heddle_planner.predictor.records import RecordedSet

FORMAT: Final = 1
DEFAULT: Final = Path(__file__).parent / "packaged"
"""The model that ships with the package; its card is README.md there."""


def _transformer() -> type[Predictor]:
    # Needs the extra `heddle-planner[transformer]`.
    try:
        from heddle_planner.predictor.transformer import Transformer
    except ImportError as error:
        raise PredictorError(
            f"transformer: {error}; install heddle-planner[transformer], or choose another model"
        ) from error
    kind: type[Predictor] = Transformer
    return kind


MODELS: Final[dict[str, Callable[[], type[Predictor]]]] = {
    "boosting": lambda: Boosting,
    "history": lambda: History,
    "prompt_only": lambda: PromptOnly,
    "transformer": _transformer,
}
BASELINES: Final = (History, PromptOnly)


@dataclass(frozen=True, slots=True)
class Seen:
    """A data set that a model was trained on. ``digests``: one a trajectory."""

    name: str
    trajectories: int
    digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A predictor, baselines of the same data, and the data's names."""

    predictor: Predictor
    baselines: tuple[Predictor, ...]
    seen: tuple[Seen, ...]

    def has_seen(self, recorded: RecordedSet) -> bool:
        """Whether any trajectory of the set was trained on."""
        known = frozenset().union(*(one.digests for one in self.seen))
        return any(digest(trajectory) in known for trajectory in recorded.trajectories)


def model_class(name: str) -> type[Predictor]:
    """Raises PredictorError for a name that there is not, or whose extra is not installed."""
    if name not in MODELS:
        raise PredictorError(f"model: {name!r} is none of {', '.join(MODELS)}")
    return MODELS[name]()


def digest(trajectory: Trajectory) -> str:
    """Tells recorded trajectories apart, whatever file they are in."""
    numbers = [step.output_tokens for step in trajectory.steps]
    body = json.dumps([trajectory.origin.trajectory_id, trajectory.origin.prompt_tokens, numbers])
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def examples_of(sets: Sequence[RecordedSet]) -> list[Example]:
    """All sets' examples; trajectories are numbered through, tasks of different sets kept apart."""
    examples: list[Example] = []
    first = 0
    for number, recorded in enumerate(sets):
        examples += make_examples(
            recorded.trajectories, recorded.tasks, group=f"{number}/", first_number=first
        )
        first += len(recorded.trajectories)
    return examples


def train(name: str, sets: Sequence[RecordedSet]) -> TrainedModel:
    """Raises PredictorError."""
    kind = model_class(name)
    examples = examples_of(sets)
    predictor = kind()
    predictor.fit(examples)
    baselines = tuple(baseline() for baseline in BASELINES)
    for baseline in baselines:
        baseline.fit(examples)
    seen = tuple(
        Seen(one.name, len(one.trajectories), frozenset(map(digest, one.trajectories))) for one in sets
    )
    return TrainedModel(predictor, baselines, seen)


def save(model: TrainedModel, folder: Path) -> None:
    """Writes the folder anew; one that holds something else is refused. Raises PredictorError."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "model.json").is_file():
        raise PredictorError(f"{folder}: holds files that are no model; give another folder")
    fresh = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "baselines").mkdir(parents=True)
        model.predictor.save(fresh)
        for baseline in model.baselines:
            baseline.save(fresh / "baselines")
        body = {
            "format": FORMAT,
            "name": model.predictor.name,
            "trained_on": [
                {"name": one.name, "trajectories": one.trajectories, "digests": sorted(one.digests)}
                for one in model.seen
            ],
        }
        (fresh / "model.json").write_text(json.dumps(body) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    except OSError as error:
        raise PredictorError(f"{folder}: cannot be written: {error}") from error


def load(folder: Path = DEFAULT) -> TrainedModel:
    """Raises PredictorError."""
    path = folder / "model.json"
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise PredictorError(f"{path}: format: {body['format']!r} is not {FORMAT}; train again")
        kind = model_class(body["name"])
        seen = tuple(
            Seen(str(one["name"]), int(one["trajectories"]), frozenset(map(str, one["digests"])))
            for one in body["trained_on"]
        )
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise PredictorError(f"{path}: cannot be read: {error!r}") from error
    except ValueError as error:
        if isinstance(error, PredictorError):
            raise
        raise PredictorError(f"{path}: cannot be read: {error!r}") from error
    baselines = tuple(baseline.load(folder / "baselines") for baseline in BASELINES)
    return TrainedModel(kind.load(folder), baselines, seen)
