"""``heddle simulate``: policies compared on a modelled cluster.

Exit codes: 0 done, 1 a run did not come to its end, 2 the input does not fit (the message names the
option or the file and line).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from heddle_planner.profiles import ProfileError, load_profile
from heddle_planner.simulate.comparison import Problem, compare
from heddle_planner.simulate.fleet import FleetError, most_context, parse_degrees, parse_loss, truth_of
from heddle_planner.simulate.policies import PolicyError, parse_policies
from heddle_planner.simulate.predictors import KINDS, PredictionError, parse_prediction, recorded_model
from heddle_planner.simulate.records import RecordError
from heddle_planner.simulate.results import HEADER, as_json, line
from heddle_planner.simulate.scripts import Cut
from heddle_planner.simulate.sources import Source, SourceError

app = typer.Typer(help="Compare policies on a modelled cluster.", add_completion=False)

INPUT_ERRORS: Final = (
    FleetError,
    PolicyError,
    PredictionError,
    ProfileError,
    RecordError,
    SourceError,
)
"""What is wrong with the input, not with the program."""


@app.command()
def simulate(
    workload: Annotated[str, typer.Option(help="coding, search, math, or a file of recorded trajectories.")],
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories of the rollout.")] = 6400,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the cluster.")] = 64,
    model: Annotated[str, typer.Option(help="qwen3-8b, qwen3-14b or qwen3-32b.")] = "qwen3-8b",
    gpu: Annotated[str, typer.Option(help="h100 or h200.")] = "h100",
    profile: Annotated[
        str | None, typer.Option(help="A worker profile instead of the packaged one of model and GPU.")
    ] = None,
    policies: Annotated[
        str, typer.Option(help="Comma-separated; a name may be followed by ;field=value changes.")
    ] = "heddle,verl,verl_hybrid,slime,fcfs,round_robin,autellix,least_load,cache_aware,fix1,fix8",
    prediction: Annotated[
        str, typer.Option(help=f"What the core is told of lengths: {KINDS}.")
    ] = "calibrated",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    group: Annotated[
        int | None,
        typer.Option(min=1, help="Samples a prompt; default 16 for domains, as recorded for files."),
    ] = None,
    scale_output: Annotated[float, typer.Option(min=0.001, help="Multiplies output tokens.")] = 1.0,
    kv_scale: Annotated[float, typer.Option(min=0.001, help="Multiplies every worker's KV tokens.")] = 1.0,
    degrees: Annotated[str, typer.Option(help="MP degrees a worker may have.")] = "1,2,4,8",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests a worker runs at once; default: the profile's.")
    ] = None,
    max_context: Annotated[
        int,
        typer.Option(min=1, help="Context at which an agent stops, at most 0.9 of the smallest worker's KV."),
    ] = 131_072,
    slowdown: Annotated[
        float, typer.Option(min=0.001, help="Workers take so many times as long as the core believes.")
    ] = 1.0,
    report_delay: Annotated[float, typer.Option(min=0, help="Seconds that load reports are old.")] = 0.0,
    lose: Annotated[
        str | None, typer.Option(help="GPUs lost with their workers: GPU@SECONDS[:BACK], comma-separated.")
    ] = None,
    keep_decoded: Annotated[
        bool, typer.Option(help="Preempted requests keep their KV as a prefix (Heddle's plugin for SGLang).")
    ] = False,
    end_signal: Annotated[bool, typer.Option(help="Agents say when a trajectory is over.")] = False,
    plans: Annotated[
        bool, typer.Option(help="Rehearse the solver's mix and its plans; without: equal workers, no plan.")
    ] = True,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the comparison here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write plots into this folder.")] = None,
) -> None:
    """Run one rollout under each policy and say what it costs."""
    try:
        rows = parse_policies(policies)
        worker_profile = load_profile(profile or f"{model}-{gpu}")
        allowed = parse_degrees(degrees)
        truth = truth_of(worker_profile, degrees=allowed, kv_scale=kv_scale, slots=slots)
        source = Source(workload, group, scale_output, recorded_model(prediction))
        context = min(max_context, most_context(truth))
        drawn = source.draw_within(context, trajectories=trajectories, seed=seed)
        rehearsals = source.earlier_within(context, trajectories=trajectories, seed=seed)
        problem = Problem(
            scripts=drawn.scripts,
            rehearsals=rehearsals,
            truth=truth,
            profile=worker_profile,
            gpus=gpus,
            prediction=parse_prediction(prediction),
            seed=seed,
            conditions={
                "slowdown": slowdown,
                "report_delay_s": report_delay,
                "end_signal": end_signal,
                "engine": {"keep_decoded": keep_decoded},
            },
            losses=[parse_loss(part.strip()) for part in lose.split(",")] if lose else [],
            plans=plans,
        )
        if not problem.degrees:
            raise FleetError(f"--gpus: {gpus} hold no worker of {degrees}")
        for loss in problem.losses:
            loss.of_worker([1] * gpus)
    except INPUT_ERRORS as error:
        typer.echo(f"heddle simulate: {error}", err=True)
        raise typer.Exit(2) from error
    facts = _facts(problem, workload=workload, context=context, cut=drawn)
    typer.echo(_headline(facts))
    try:
        comparison = compare(problem, rows, timeline=plot is not None)
    except RuntimeError as error:
        typer.echo(f"heddle simulate: {error}", err=True)
        raise typer.Exit(1) from error
    longest, work, _ = comparison.lower_bound_parts_s
    typer.echo(
        f"lower bound {comparison.lower_bound_s:.0f} s "
        f"(longest trajectory alone {longest:.0f} s, all work {work:.0f} s)"
    )
    typer.echo(HEADER)
    for outcome in comparison.outcomes:
        typer.echo(line(outcome, comparison))
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(as_json(comparison, facts)) + "\n", encoding="utf-8")
    if plot is not None:
        # Imported here: matplotlib takes a second to load, and most calls draw nothing.
        from heddle_planner.simulate.plots import write_plots

        for path in write_plots(comparison, plot):
            typer.echo(f"wrote {path}")


def _facts(problem: Problem, *, workload: str, context: int, cut: Cut) -> dict[str, Any]:
    lengths = sorted(script.output for script in problem.scripts)
    n = len(lengths)
    return {
        "workload": workload,
        "trajectories": n,
        "steps": sum(len(script.turns) for script in problem.scripts),
        "gpus": problem.gpus,
        "profile": f"{problem.profile.model} on {problem.profile.gpu}",
        "output_tokens": {
            "median": lengths[n // 2],
            "p90": lengths[int(0.9 * n)],
            "p99": lengths[int(0.99 * n)],
            "max": lengths[-1],
        },
        "max_context": context,
        "shortened_to_fit": cut.shortened,
        "dropped_to_fit": cut.dropped,
        "prediction": dict(problem.prediction),
        "seed": problem.seed,
        "conditions": dict(problem.conditions),
        "lost_gpus": [asdict(loss) for loss in problem.losses],
    }


def _headline(facts: dict[str, Any]) -> str:
    tokens = facts["output_tokens"]
    cut = facts["shortened_to_fit"] + facts["dropped_to_fit"]
    return (
        f"{facts['workload']}: {facts['trajectories']} trajectories, {facts['steps']} steps, output tokens "
        f"{tokens['median']} median / {tokens['p90']} p90 / {tokens['p99']} p99 / {tokens['max']} max; "
        f"{facts['gpus']} GPUs, {facts['profile']}; prediction {facts['prediction']['kind']}"
        + (f"; {cut} cut to a context of {facts['max_context']} tokens" if cut else "")
    )
