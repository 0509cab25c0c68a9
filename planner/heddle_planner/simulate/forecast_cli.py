"""``heddle forecast``: what the simulator says of a recorded trace on workers that are described one by one.

    TRACE           records as in `records`, acted out as they are, all from the start
    --cluster FILE  {"workers": [{"degree", "slots", "kv_tokens", "costs": {...}}, ...],
                     "policies": {NAME: {FIELD: VALUE, ...}, ...}}   costs: `heddle_sim::costs::Costs`

Prints ``{NAME: {"makespan_s", "lower_bound_s", ...}}``. Exit code 2 where the input does not fit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_core import simulate

from heddle_planner.simulate.predictors import PredictionError, parse_prediction
from heddle_planner.simulate.records import Record, RecordError, load_records
from heddle_planner.simulate.scripts import Script, Turn, to_native

SHOWN: Final = ("makespan_s", "moves", "preemptions", "retractions", "prefilled_tokens", "cached_tokens")

app = typer.Typer(add_completion=False)


@app.command()
def forecast(
    trace: Annotated[Path, typer.Argument(help="Recorded trajectories, JSON lines.")],
    cluster: Annotated[Path, typer.Option(help="Workers and policies, JSON; see `heddle forecast --help`.")],
    prediction: Annotated[
        str, typer.Option(help="What policies by length are told, as in `heddle simulate --prediction`.")
    ] = "calibrated",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Simulate a trace on given workers, one worker a line of the file, under each of the given policies."""
    try:
        scripts = [script_of(record, number) for number, record in _numbered(load_records(trace))]
        described = json.loads(cluster.read_text(encoding="utf-8"))
        kind = parse_prediction(prediction)
        found = {
            name: _run(scripts, described["workers"], policy, kind, seed)
            for name, policy in described["policies"].items()
        }
    except (OSError, RecordError, PredictionError, ValueError, KeyError, TypeError) as error:
        typer.echo(f"heddle forecast: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps(found))


def _numbered(records: list[Record]) -> list[tuple[int, Record]]:
    """Records with the number of their task."""
    tasks: dict[str, int] = {}
    return [(tasks.setdefault(record.task, len(tasks)), record) for record in records]


def script_of(record: Record, group: int) -> Script:
    """A record as it is; a gap that was not recorded takes no time."""
    return Script(
        prompt=record.prompt,
        group=group,
        turns=tuple(
            Turn(input=turn.input if index else 0, output=turn.output, tool_seconds=turn.tool_seconds or 0.0)
            for index, turn in enumerate(record.turns)
        ),
    )


def _run(
    scripts: list[Script],
    workers: list[Mapping[str, Any]],
    policy: Mapping[str, Any],
    kind: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    truth = {
        str(worker["degree"]): {name: worker[name] for name in ("costs", "slots", "kv_tokens")}
        for worker in workers
    }
    native = to_native(scripts)
    spec = json.dumps(
        {
            "truth": truth,
            "workers": [worker["degree"] for worker in workers],
            "policy": dict(policy),
            "prediction": kind if policy.get("placement") == "by_rank" else {"kind": "none"},
            "most_output": max(turn.output for script in scripts for turn in script.turns),
            "seed": seed,
        }
    )
    report: dict[str, Any] = json.loads(simulate(native, spec)[0])
    return {**{name: report.get(name) for name in SHOWN}, "lower_bound_s": max(native.lower_bound(spec))}
