"""`heddle bench rollout`: a live rollout under Heddle and under baselines, the simulator's word beside it."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from heddle_cli.bench.rollout_arms import ARMS, ArmResult, run_arms
from heddle_cli.bench.rollout_workload import TooFewTasks, make_groups, write_trace
from heddle_cli.demo.arm import Cluster, Policy
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory, RecordError, load, load_shipped
from heddle_cli.replay.rollout import Progress as RolloutProgress
from heddle_cli.terminal import print_table

DEFAULT_GAP_S: Final = 1.0
SHOWN_COUNTS: Final = (
    "moves_total",
    "migrations_total",
    "stolen_total",
    "preemptions_total",
    "holds_expired_total",
)


def rollout(
    groups: Annotated[int, typer.Option(min=1, help="Prompts.")] = 96,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories of each prompt.")] = 8,
    records: Annotated[
        str, typer.Option(help="Recorded trajectories: a shipped set (vorflux, tau_airline) or a file.")
    ] = "vorflux",
    max_steps: Annotated[int, typer.Option(min=1, help="Records with more steps are left out.")] = 100,
    tp: Annotated[str, typer.Option(help="MP degrees of the emulated workers.")] = "4,2,2,1,1,1,1,1",
    slots: Annotated[int, typer.Option(min=1, help="Requests that each emulated worker runs at once.")] = 64,
    speed: Annotated[float, typer.Option(help="Emulated seconds per real second.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Which of the records take part.")] = 1,
    policies: Annotated[str, typer.Option(help="Which arms run, in this order.")] = ",".join(ARMS),
    profile: Annotated[Path | None, typer.Option(help="Timing of the emulated workers.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder for logs, histories and the journal.")] = None,
) -> None:
    """Run one rollout live under each policy, and simulate the same trace; makespans side by side.

    Exit code 1 if a step was lost. Agents, gateway and workers share this machine: where it is busy, steps
    take longer than their emulated time, and the simulator, which knows no such thing, is ahead.
    """
    unknown = [name for name in policies.split(",") if name not in ARMS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ARMS)}", param_hint="--policies")
    try:
        known = load(Path(records)) if Path(records).exists() else load_shipped(records)
        chosen = make_groups(known, groups=groups, samples=samples, max_steps=max_steps, seed=seed)
    except (RecordError, TooFewTasks) as error:
        raise CommandFailed(Exit.USAGE, f"--records: {error}") from error
    settings = ReplaySettings(speed=speed, default_gap_s=DEFAULT_GAP_S)
    cluster = Cluster(tp=tp, slots=slots, speed=speed, profile=profile)
    with tempfile.TemporaryDirectory(prefix="heddle-rollout-") as folder:
        scratch = Path(folder)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            scratch = keep.resolve()
        arms = [ARMS[name] for name in policies.split(",")]
        results = _run(arms, cluster, chosen, settings, scratch)
        forecasts = _simulated(arms, chosen, settings, results[0].servers, scratch)
    report = _report(results, forecasts, chosen, cluster)
    _show(report)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for result in results:
        if result.report.lost_steps:
            raise CommandFailed(Exit.FAILED, f"{result.policy.name}: {result.report.errors[0]}")


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
    )
    tasks: dict[str, Any] = {}

    def show(policy: Policy, now: RolloutProgress) -> None:
        if policy.name not in tasks:
            tasks[policy.name] = bar.add_task(policy.name, total=total, agents=0)
        bar.update(tasks[policy.name], completed=now.steps_done, agents=now.trajectories_done)

    with bar:
        return asyncio.run(run_arms(arms, cluster, chosen, settings, scratch, show))


def _simulated(
    arms: Sequence[Policy],
    chosen: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    servers: Sequence[Mapping[str, Any]],
    scratch: Path,
) -> dict[str, dict[str, Any]]:
    """What the simulator says of the same trace on the same workers, by policy. Raises CommandFailed."""
    trace, cluster = scratch / "trace.jsonl", scratch / "cluster.json"
    write_trace(chosen, settings, trace)
    rows = {
        arm.name: {"order": arm.order, "placement": arm.placement, "admission": arm.admission} for arm in arms
    }
    cluster.write_text(json.dumps({"workers": [_worker(one) for one in servers], "policies": rows}))
    done = subprocess.run(
        [sys.executable, "-m", "heddle_cli", "forecast", str(trace), "--cluster", str(cluster)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandFailed(Exit.FAILED, f"the simulator: {done.stderr.strip()}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def _worker(server: Mapping[str, Any]) -> dict[str, Any]:
    """An emulated worker's costs at its MP degree, in the simulator's words."""
    timing, degree = server["heddle_timing"], int(server["tp_size"])
    compute = degree ** timing["scaling"]
    base = timing["decode_fixed_s"] + timing["decode_weights_s"] / degree
    each = timing["decode_request_s"] / compute
    return {
        "degree": degree,
        "slots": int(server["max_running_requests"]),
        "kv_tokens": int(server["max_total_num_tokens"]),
        "costs": {
            "batches": [1, 2],
            "step_seconds": [base + each, base + 2 * each],
            "context_token_s": timing["decode_context_s"] / degree,
            "prefill_fixed_s": timing["prefill_fixed_s"],
            "prefill_token_s": timing["prefill_token_s"] / compute,
            "prefill_pair_s": timing["prefill_context_s"] / compute,
        },
    }


def _report(
    results: Sequence[ArmResult],
    forecasts: Mapping[str, Mapping[str, Any]],
    chosen: Sequence[RecordedTrajectory],
    cluster: Cluster,
) -> dict[str, Any]:
    return {
        "trajectories": len(chosen),
        "steps": sum(len(one.steps) for one in chosen),
        "tp": cluster.tp,
        "slots": cluster.slots,
        "speed": cluster.speed,
        "lower_bound_s": next(iter(forecasts.values()))["lower_bound_s"],
        "policies": {
            result.policy.name: {
                "policy": asdict(result.policy),
                "makespan_s": result.report.makespan_s,
                "simulated_makespan_s": forecasts[result.policy.name]["makespan_s"],
                "to_simulated": result.report.makespan_s / forecasts[result.policy.name]["makespan_s"],
                "median_s": result.report.quantile_s(0.5),
                "p99_s": result.report.quantile_s(0.99),
                "cached_share": result.report.cached_share,
                "steps_lost": result.report.lost_steps,
                "core": dict(result.core),
                "planner": dict(result.planner),
            }
            for result in results
        },
    }


def _show(report: Mapping[str, Any]) -> None:
    print(
        f"\n{report['trajectories']} trajectories, {report['steps']} steps under each policy, emulated"
        " workers of"
        f" MP degree {report['tp']} with {report['slots']} slots, clock x{report['speed']:g}; emulated"
        " seconds."
        f" Lower bound {report['lower_bound_s']:.0f} s.\n"
    )
    print_table(
        (
            "policy",
            "#live",
            "#simulated",
            "#live / simulated",
            "#median",
            "#p99",
            "#cached",
            "#lost",
            "#moves",
        ),
        [
            (
                name,
                f"{row['makespan_s']:.0f} s",
                f"{row['simulated_makespan_s']:.0f} s",
                f"{row['to_simulated']:.2f}",
                f"{row['median_s']:.0f} s",
                f"{row['p99_s']:.0f} s",
                f"{row['cached_share']:.1%}",
                row["steps_lost"],
                row["core"].get("moves_total", 0),
            )
            for name, row in report["policies"].items()
        ],
    )
    heddle = report["policies"].get("heddle")
    others = {name: row for name, row in report["policies"].items() if name != "heddle"}
    if heddle is None:
        return
    if others:
        best = min(others, key=lambda name: float(others[name]["makespan_s"]))
        gain = others[best]["makespan_s"] / heddle["makespan_s"]
        print(f"\nheddle's rollout ends {gain:.2f}x as fast as under {best}, the best of the others.")
    counts = {name: value for name, value in heddle["core"].items() if name in SHOWN_COUNTS}
    counts |= {name: value for name, value in heddle["core"].items() if name.startswith("migrations_")}
    counts |= {name: round(value) for name, value in heddle["planner"].items() if value}
    for name, value in counts.items():
        print(f"  {name} {value}")
