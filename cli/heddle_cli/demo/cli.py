"""`heddle demo`: the main job on one machine, without a GPU."""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from heddle_cli.demo.arm import ArmResult, Cluster, Policy, run_arm
from heddle_cli.demo.emulated_cost import lower_bound_s
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.given_numbers import Degrees, Speed
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory, RecordError, load, load_shipped
from heddle_cli.replay.rollout import Progress as RolloutProgress
from heddle_cli.terminal import print_json, print_table

BASELINES: Final = (
    Policy("round robin", order="fcfs", placement="round_robin", admission="unlimited"),
    Policy("least load", order="fcfs", placement="least_load", admission="unlimited"),
)
HEDDLE: Final = Policy("heddle", order="longest_first", placement="by_rank", admission="working_set")
# Where the record holds no tool time (tau_airline): a short tool.
DEFAULT_GAP_S: Final = 1.0

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    records: Annotated[
        str, typer.Option(help="Recorded trajectories: a shipped set (vorflux, tau_airline) or a file.")
    ] = "vorflux",
    agents: Annotated[int, typer.Option(min=1, help="Agents that run at once.")] = 96,
    max_steps: Annotated[
        int, typer.Option(min=1, help="Records with more steps are left out, so that two cores keep up.")
    ] = 100,
    tp: Degrees = "4,2,1,1,1",
    slots: Annotated[int, typer.Option(min=1, help="Requests that each emulated worker runs at once.")] = 16,
    speed: Speed = 25.0,
    seed: Annotated[int, typer.Option(help="Which of the records take part.")] = 1,
    profile: Annotated[
        Path | None, typer.Option(help="Timing of the emulated workers; by default a 32B model on H200s.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run untagged agents on emulated workers under three policies and compare.

    The agents are the plain openai SDK with base_url set; they act recorded trajectories out, tool gaps
    included. Exit code 1 if a step was lost or an agent was not recognised as one trajectory.
    """
    chosen = _choose(records, agents, max_steps, seed)
    settings = ReplaySettings(speed=speed, default_gap_s=DEFAULT_GAP_S)
    with as_file(files("heddle_cli.demo") / "qwen3_32b_h200.json") as shipped:
        cluster = Cluster(tp=tp, slots=slots, speed=speed, profile=profile or shipped)
        results = asyncio.run(_run_all(cluster, chosen, settings, quiet=as_json))
    bound = lower_bound_s(chosen, results[0].workers, settings)
    if as_json:
        print_json(_figures(results, bound, chosen))
    else:
        _show(results, bound, chosen, cluster)
    _check(results, chosen)


def _choose(records: str, agents: int, max_steps: int, seed: int) -> list[RecordedTrajectory]:
    """Raises CommandFailed where the records cannot be had or are too few."""
    try:
        path = Path(records)
        known = load(path) if path.exists() else load_shipped(records)
    except RecordError as error:
        raise CommandFailed(Exit.USAGE, f"--records: {error}") from error
    fitting = [one for one in known if len(one.steps) <= max_steps]
    if len(fitting) < agents:
        raise CommandFailed(
            Exit.USAGE,
            f"--agents: {agents} wanted, {records} has {len(fitting)} of at most {max_steps} steps",
        )
    return random.Random(seed).sample(fitting, agents)


async def _run_all(
    cluster: Cluster, trajectories: Sequence[RecordedTrajectory], settings: ReplaySettings, *, quiet: bool
) -> list[ArmResult]:
    results = []
    total = sum(len(one.steps) for one in trajectories)
    bar = Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[agents]} agents done,"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )
    with bar, tempfile.TemporaryDirectory(prefix="heddle-demo-") as scratch:
        for policy in (*BASELINES, HEDDLE):
            task = bar.add_task(policy.name, total=total, agents=0)

            def show(now: RolloutProgress, task: Any = task) -> None:
                bar.update(task, completed=now.steps_done, agents=now.trajectories_done)

            results.append(await run_arm(policy, cluster, trajectories, settings, show, Path(scratch)))
    return results


def _figures(
    results: Sequence[ArmResult], bound: float, trajectories: Sequence[RecordedTrajectory]
) -> dict[str, Any]:
    return {
        "agents": len(trajectories),
        "steps": sum(len(one.steps) for one in trajectories),
        "lower_bound_s": bound,
        "policies": {
            result.policy.name: {
                "policy": asdict(result.policy),
                "makespan_s": result.report.makespan_s,
                "to_lower_bound": result.report.makespan_s / bound,
                "median_s": result.report.quantile_s(0.5),
                "p99_s": result.report.quantile_s(0.99),
                "queue_longest_s": result.queue_longest_s,
                "cached_share": result.report.cached_share,
                "recognised": result.recognised,
                "steps_lost": result.report.lost_steps,
                "steps_started": result.steps_started,
                "steps_ended": dict(result.steps_ended),
            }
            for result in results
        },
    }


def _show(
    results: Sequence[ArmResult],
    bound: float,
    trajectories: Sequence[RecordedTrajectory],
    cluster: Cluster,
) -> None:
    steps = sum(len(one.steps) for one in trajectories)
    print(
        f"\n{len(trajectories)} untagged agents, {steps} steps under each policy, "
        f"emulated workers of MP degree {cluster.tp} with {cluster.slots} slots; emulated seconds. "
        f"Lower bound {bound:.0f} s.\n"
    )
    print_table(
        (
            "policy",
            "#makespan",
            "#to lower bound",
            "#median",
            "#p99",
            "#queue of longest",
            "#cached",
            "#trajectories",
            "#steps lost",
        ),
        [
            (
                result.policy.name,
                f"{result.report.makespan_s:.0f} s",
                f"{result.report.makespan_s / bound:.2f}x",
                f"{result.report.quantile_s(0.5):.0f} s",
                f"{result.report.quantile_s(0.99):.0f} s",
                f"{result.queue_longest_s:.1f} s",
                f"{result.report.cached_share:.1%}",
                result.recognised,
                result.report.lost_steps,
            )
            for result in results
        ],
    )
    best = min(results[:-1], key=lambda one: one.report.makespan_s)
    gain = best.report.makespan_s / results[-1].report.makespan_s
    print(f"\nheddle's rollout ends {gain:.2f}x as fast as under {best.policy.name}, the better of the two.")


def _check(results: Sequence[ArmResult], trajectories: Sequence[RecordedTrajectory]) -> None:
    """Raises CommandFailed where the run shows a defect."""
    for result in results:
        if result.report.lost_steps:
            raise CommandFailed(Exit.FAILED, f"{result.policy.name}: {result.report.errors[0]}")
        if result.recognised != len(trajectories):
            raise CommandFailed(
                Exit.FAILED,
                f"{result.policy.name}: {len(trajectories)} agents came out as "
                f"{result.recognised} trajectories",
            )
        ended = sum(result.steps_ended.values())
        if result.steps_in_flight or result.steps_started != ended:
            raise CommandFailed(
                Exit.FAILED,
                f"{result.policy.name}: {result.steps_started} steps started, {ended} ended, "
                f"{result.steps_in_flight} in flight",
            )
