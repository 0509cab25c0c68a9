"""``heddle forecast``: what the simulator says of a recorded trace on workers that are described one by one.

    TRACE           records as in `records`, acted out as they are, all from the start
    --cluster FILE  {"workers": [{"degree", "slots", "kv_tokens", "costs": {...}}, ...],
                     "policies": {NAME: {FIELD: VALUE, ...}, ...},  costs: `heddle_sim::costs::Costs`
                     "forecasts": {NAME: [[[MEAN, SIGMA], ...], ...]},   optional: what a policy was told
                                          before each step of each trajectory, in the order of the trace
                     "plans": {NAME: [{"at_s", "ttl_s", "partition": [{"worker", "size"}, ...]}, ...]},
                                          optional: shares of the ranks that came into force on the way,
                                          workers from 0 in the order above; "ttl_s" 0: those in force went
                     "run": {FIELD: VALUE, ...}}     optional: further fields of `heddle_sim::spec::Spec`

Prints ``{NAME: {"makespan_s", "lower_bound_s", ...}}``. Exit code 2 where the input does not fit.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_core import simulate

from heddle_planner.simulate.predictors import PredictionError, parse_prediction
from heddle_planner.simulate.records import Record, RecordError, load_records
from heddle_planner.simulate.scripts import Script, Turn, to_native

SHOWN: Final = ("makespan_s", "moves", "preemptions", "retractions", "prefilled_tokens", "cached_tokens")

LOOK_S: Final = 5.0
"""Seconds by which a plan may come late: so often it is asked whether another has come into force."""

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
            name: _run(
                _told(scripts, described.get("forecasts", {}).get(name)),
                described["workers"],
                policy,
                kind,
                described.get("plans", {}).get(name, []),
                described.get("run", {}),
                seed,
            )
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


def _told(scripts: list[Script], forecasts: list[Any] | None) -> list[Script]:
    """The scripts with what was said before their steps. Raises ValueError."""
    if forecasts is None:
        return scripts
    if len(forecasts) != len(scripts):
        raise ValueError(f"forecasts: are of {len(forecasts)} trajectories, the trace has {len(scripts)}")
    found = []
    for place, (script, told) in enumerate(zip(scripts, forecasts, strict=True)):
        if len(told) != len(script.turns):
            raise ValueError(f"forecasts[{place}]: are of {len(told)} steps, not {len(script.turns)}")
        pairs = tuple((max(1.0, float(mean)), float(sigma)) for mean, sigma in told)
        found.append(replace(script, forecasts=pairs))
    return found


class RecordedPlans:
    """Answers of a planner that were recorded. Each is given once, and the last where several have come."""

    def __init__(self, plans: Sequence[Mapping[str, Any]], policy: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError, ValueError where one has not what a plan has."""
        self._placement = policy["placement"]
        self._plans = deque(sorted(((float(plan["at_s"]), plan) for plan in plans), key=itemgetter(0)))

    def __call__(self, question_json: str) -> str | None:
        """See ``heddle_core.simulate``."""
        at_s = json.loads(question_json)["at_s"]
        due: Mapping[str, Any] | None = None
        while self._plans and self._plans[0][0] <= at_s:
            _, due = self._plans.popleft()
        if due is None:
            return None
        ttl_s = float(due["ttl_s"])
        return json.dumps(
            {
                "placement": self._placement,
                "partition": due["partition"],
                "with_shares": ttl_s > 0,
                "ttl_s": ttl_s,
                "fallback": self._placement,
            }
        )


def _run(
    scripts: list[Script],
    workers: list[Mapping[str, Any]],
    policy: Mapping[str, Any],
    kind: Mapping[str, Any],
    plans: list[Mapping[str, Any]],
    run: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    truth = {
        str(worker["degree"]): {
            name: worker[name] for name in ("costs", "slots", "kv_tokens", "link") if name in worker
        }
        for worker in workers
    }
    native = to_native(scripts)
    if all(script.forecasts for script in scripts):
        kind = {"kind": "recorded"}
    spec = json.dumps(
        {
            **run,
            "truth": truth,
            "workers": [worker["degree"] for worker in workers],
            "policy": dict(policy),
            "prediction": kind if policy.get("placement") == "by_rank" else {"kind": "none"},
            # Each request asks for the tokens that it gets: never less than its step's own.
            "most_output": 1,
            "seed": seed,
            **({"replan": {"period_s": LOOK_S}} if plans else {}),
        }
    )
    planner = RecordedPlans(plans, policy) if plans else None
    report: dict[str, Any] = json.loads(simulate(native, spec, planner)[0])
    return {**{name: report.get(name) for name in SHOWN}, "lower_bound_s": max(native.lower_bound(spec))}
