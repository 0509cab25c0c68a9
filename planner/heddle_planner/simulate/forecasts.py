"""What a trained predictor says before each step of recorded trajectories, for the simulator to replay.

For a set that the model was trained on they are made by task folds: no model speaks of a task it was
fitted to.
"""

from dataclasses import replace
from pathlib import Path

from heddle_planner.simulate.records import Record, RecordError


def with_forecasts(records: list[Record], data: Path, model: Path) -> list[Record]:
    """The records of ``data`` with (mean tokens, sigma) before each step. Raises RecordError."""
    # Imported late: most simulations have no trained model, and LightGBM takes its time.
    from heddle_planner.predictor import models
    from heddle_planner.predictor.evaluate import evaluate
    from heddle_planner.predictor.protocol import PredictorError
    from heddle_planner.predictor.records import DataError, load_set

    try:
        trained = models.load(models.DEFAULT if str(model) == "default" else model)
        recorded = load_set(data)
        said = evaluate(trained, recorded)[trained.predictor.name].said
    except (DataError, PredictorError) as error:
        raise RecordError(f"--prediction: {error}") from error
    pairs = [(float(mean), float(sigma)) for mean, sigma in zip(said.mean, said.sigma, strict=True)]
    steps = [len(record.turns) for record in records]
    if sum(steps) != len(pairs):
        raise RecordError(f"{data}: holds unfinished trajectories; their forecasts cannot be replayed")
    found = []
    start = 0
    for record, count in zip(records, steps, strict=True):
        found.append(replace(record, forecasts=tuple(pairs[start : start + count])))
        start += count
    return found
