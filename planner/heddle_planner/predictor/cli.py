"""``heddle predictor``: train, evaluate and export.

Exit codes: 0 done, 2 the input does not fit (the message names the file, the line and the field, or the
option).
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle_planner.predictor.records import DataError, RecordedSet, is_text_file, load_set

app = typer.Typer(help="Train and evaluate predictors of remaining length.", add_completion=False)

_Data = Annotated[
    list[Path],
    typer.Argument(help="Recorded trajectories: NAME.jsonl or NAME.jsonl.gz; texts beside them are found."),
]
_Lenient = Annotated[
    bool, typer.Option("--lenient", help="Leave lines out that are wrong, and count them, instead of ending.")
]


@app.command()
def train(
    data: _Data,
    out: Annotated[Path, typer.Option(help="Folder for the model; one that holds a model is replaced.")],
    model: Annotated[
        str, typer.Option(help="boosting, history, prompt_only or transformer (an extra).")
    ] = "boosting",
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Whether the model may read texts, or numbers alone.")
    ] = True,
    lenient: _Lenient = False,
) -> None:
    """Fit a predictor, and the baselines, to recorded trajectories."""
    # Imported late: `heddle --help` lists this command without loading LightGBM.
    from heddle_planner.predictor import models
    from heddle_planner.predictor.protocol import PredictorError

    try:
        models.model_class(model)
        sets = _load(data, lenient=lenient, texts=texts)
        trained = models.train(model, sets)
        models.save(trained, out)
    except (DataError, PredictorError) as error:
        raise _refused(str(error)) from error
    count = sum(len(one.trajectories) for one in sets)
    typer.echo(f"{out}: {model}, trained on {count} trajectories of {', '.join(one.name for one in sets)}")


@app.command(name="eval")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained model; default: the packaged one.")],
    data: _Data,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all scores here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write plots into this folder.")] = None,
    folds: Annotated[int, typer.Option(min=2, max=50, help="Task folds for a set that was trained on.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    lenient: _Lenient = False,
) -> None:
    """Score a predictor beside the baselines; a set that it was trained on by task folds."""
    from heddle_planner.predictor import models
    from heddle_planner.predictor.evaluate import evaluate, report
    from heddle_planner.predictor.protocol import PredictorError

    try:
        trained = models.load(models.DEFAULT if str(folder) == "default" else folder)
        sets = _load(data, lenient=lenient)
        body: dict[str, Any] = {}
        for recorded in sets:
            if recorded.name in body:
                raise DataError(f"{recorded.path}: a second set named {recorded.name!r}; rename the file")
            held = evaluate(trained, recorded, folds=folds, seed=seed)
            body[recorded.name] = report(held)
            how = f"{folds} task folds" if trained.has_seen(recorded) else "never seen"
            typer.echo(table(f"{recorded.name} ({how})", body[recorded.name]))
            if plot is not None:
                from heddle_planner.predictor.plots import write_plots

                write_plots(recorded.name, held, body[recorded.name], plot)
        if json_path is not None:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    except (DataError, PredictorError, OSError) as error:
        raise _refused(str(error)) from error


@app.command()
def export(
    from_history: Annotated[
        bool, typer.Option("--from-history", help="Read the gateway's history (the only source there is).")
    ],
    out: Annotated[Path, typer.Option(help="File to write: JSON lines, gzipped if it ends in .gz.")],
    database: Annotated[
        str,
        typer.Option(
            envvar="HEDDLE_DATABASE", help="SQLite file or SQLAlchemy URL of the history, as the gateway's."
        ),
    ] = "heddle.db",
) -> None:
    """Write the gateway's history as recorded trajectories, to train on."""
    from heddle_planner.predictor.export import export_history

    if not from_history:
        raise _refused("--from-history: is the only source; give it")
    try:
        written = export_history(database, out)
    except (DataError, OSError) as error:
        raise _refused(str(error)) from error
    typer.echo(f"{out}: {written} trajectories")


def _load(paths: list[Path], *, lenient: bool, texts: bool = True) -> list[RecordedSet]:
    sets = []
    for path in paths:
        if is_text_file(path):
            continue  # read beside the file that it belongs to
        recorded = load_set(path, lenient=lenient, texts=texts)
        if recorded.skipped:
            typer.echo(
                f"{path}: {recorded.skipped} lines left out, such as: {recorded.problems[0]}", err=True
            )
        sets.append(recorded)
    if not sets:
        raise DataError("DATA: holds texts alone; give the files that they belong to")
    return sets


def table(title: str, body: dict[str, Any]) -> str:
    """Scores of one set, as people read them; `body` is what `evaluate.report` gave."""
    columns = {
        "recall_top10": "recall10",
        "recall_top5": "recall5",
        "pearson": "pearson",
        "spearman": "spearman",
        "concordance": "concord.",
        "mae": "mae",
        "calibration_slope": "slope",
        "coverage50": "cover50",
        "coverage90": "cover90",
    }
    lines = [title, f"  {'model':<12}{'after':>8}" + "".join(f"{name:>10}" for name in columns.values())]
    for name, parts in body.items():
        for after, scores in [*parts["after_step"].items(), ("all", parts["overall"])]:
            values = [scores[column] for column in columns]
            cells = "".join(_cell(value) for value in values)
            lines.append(f"  {name:<12}{after:>8}{cells}")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return f"{'-':>10}"
    return f"{value:>10.0f}" if value > 20 else f"{value:>10.3f}"


def _refused(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)
