"""`heddle bench rollout`: a live rollout under Heddle and under baselines, the simulator's word beside it."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from heddle_cli.bench.rollout_arms import ARMS, ArmResult, run_arms
from heddle_cli.bench.rollout_report import ReportMismatch, merged, report_of, row_of, show
from heddle_cli.bench.rollout_simulated import move_setup_s, simulated
from heddle_cli.bench.rollout_workload import TooFewTasks, make_groups
from heddle_cli.demo.arm import Cluster, Policy
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory, RecordError, load, load_shipped
from heddle_cli.replay.rollout import Progress as RolloutProgress

DEFAULT_GAP_S: Final = 1.0
WORKERS: Final = "qwen3-32b-h200"


def rollout(
    groups: Annotated[int, typer.Option(min=1, help="Prompts.")] = 96,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories of each prompt.")] = 8,
    records: Annotated[
        str, typer.Option(help="Recorded trajectories: a shipped set (vorflux, tau_airline) or a file.")
    ] = "vorflux",
    max_steps: Annotated[int, typer.Option(min=1, help="Records with more steps are left out.")] = 60,
    scale_output: Annotated[
        float, typer.Option(min=0.01, help="Every answer is so many times as long as recorded.")
    ] = 1.0,
    tp: Annotated[str, typer.Option(help="MP degrees of the emulated workers.")] = "4,2,2,1,1,1,1,1",
    slots: Annotated[int, typer.Option(min=1, help="Requests that each emulated worker runs at once.")] = 16,
    speed: Annotated[float, typer.Option(min=0.01, help="Emulated seconds per real second.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Which of the records take part.")] = 1,
    arms: Annotated[str, typer.Option(help="Which policies run, in this order.")] = ",".join(ARMS),
    repeat: Annotated[int, typer.Option(min=1, help="So many times each, in turn.")] = 1,
    profile: Annotated[
        Path | None, typer.Option(help=f"Timing of the emulated workers; by default that of {WORKERS}.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Run nothing: show these reports of parts as one. Repeatable.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for logs, histories and the journal.")] = None,
) -> None:
    """Run one rollout live under each policy, and simulate the same trace; makespans side by side.

    Exit code 1 if a step was lost. Agents, gateway and workers share this machine; what it added to the time
    is measured, and a row that it distorted says so.
    """
    if merge:
        try:
            report = merged(merge)
        except (ReportMismatch, OSError, ValueError, KeyError) as error:
            raise CommandFailed(Exit.USAGE, f"--merge: {error}") from error
        _deliver(report, json_path)
        return
    wanted = _arms(arms)
    try:
        known = load(Path(records)) if Path(records).exists() else load_shipped(records)
        chosen = make_groups(
            known, groups=groups, samples=samples, max_steps=max_steps, scale_output=scale_output, seed=seed
        )
    except (RecordError, TooFewTasks) as error:
        raise CommandFailed(Exit.USAGE, f"--records: {error}") from error
    settings = ReplaySettings(speed=speed, default_gap_s=DEFAULT_GAP_S)
    setting = {
        "groups": groups,
        "samples": samples,
        "trajectories": len(chosen),
        "steps": sum(len(one.steps) for one in chosen),
        "records": records,
        "max_steps": max_steps,
        "scale_output": scale_output,
        "seed": seed,
        "tp": tp,
        "slots": slots,
        "speed": speed,
        "workers": WORKERS if profile is None else json.loads(profile.read_text(encoding="utf-8")),
    }
    rows = []
    results = []
    with (
        as_file(files("heddle_cli.bench") / "rollout_workers.json") as packaged,
        tempfile.TemporaryDirectory(prefix="heddle-rollout-") as folder,
    ):
        cluster = Cluster(tp=tp, slots=slots, speed=speed, profile=profile or packaged)
        for number in range(repeat):
            scratch = (Path(folder) if keep is None else keep.resolve()) / f"{number + 1}"
            scratch.mkdir(parents=True, exist_ok=True)
            results = _run(wanted, cluster, chosen, settings, scratch)
            said = simulated(results, chosen, settings, scratch)
            setup_s = move_setup_s(results, speed)
            rows += [row_of(result, said[result.policy.name], setup_s) for result in results]
    _deliver(report_of(setting, rows), json_path)
    for result in results:
        if result.report.lost_steps:
            raise CommandFailed(Exit.FAILED, f"{result.policy.name}: {result.report.errors[0]}")


def _arms(names: str) -> list[Policy]:
    unknown = [name for name in names.split(",") if name not in ARMS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ARMS)}", param_hint="--arms")
    return [ARMS[name] for name in names.split(",")]


def _deliver(report: dict[str, Any], json_path: Path | None) -> None:
    show(report)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _run(
    arms: Sequence[Policy],
    cluster: Cluster,
    chosen: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    scratch: Path,
) -> list[ArmResult]:
    total = sum(len(one.steps) for one in chosen)
    bar = Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[agents]} trajectories done,"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
    )
    tasks: dict[str, Any] = {}

    def note(policy: Policy, now: RolloutProgress) -> None:
        if policy.name not in tasks:
            tasks[policy.name] = bar.add_task(policy.name, total=total, agents=0)
        bar.update(tasks[policy.name], completed=now.steps_done, agents=now.trajectories_done)

    with bar, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(run_arms(arms, cluster, chosen, settings, scratch, note))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; None for asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
