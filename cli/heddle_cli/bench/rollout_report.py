"""The rollout benchmark's report: one row an arm and repeat, as JSON and as a table; reports of parts merge.

    {"setting": {...}, "machine": {...}, "lower_bound_s", "runs": [row, ...]}

Invariant: rows stand beside each other only if they are of the same setting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from heddle_cli.bench import machine
from heddle_cli.bench.rollout_arms import ArmResult
from heddle_cli.bench.rollout_lateness import VALID_SHARE
from heddle_cli.terminal import print_table

MOVES: Final = ("requested", "started", "landed", "hidden", "waited_for", "cancelled", "failed", "expired")
FOUND: Final = ("found", "not_found")


class ReportMismatch(ValueError):
    """Reports of different settings; the message names what differs."""


def row_of(result: ArmResult, said: Mapping[str, Any], move_setup_s: float) -> dict[str, Any]:
    """One arm, once. ``said``: what the simulator said of it, told that a move takes ``move_setup_s``
    emulated seconds beside its transfer.
    """
    report, late = result.report, result.lateness
    migrations = {name: result.core.get(f"migrations_{name}_total", 0) for name in (*MOVES, *FOUND)}
    return {
        "arm": result.policy.name,
        "policy": asdict(result.policy),
        "makespan_s": report.makespan_s,
        "simulated_makespan_s": said["makespan_s"],
        "to_simulated": report.makespan_s / said["makespan_s"],
        "median_s": report.quantile_s(0.5),
        "p99_s": report.quantile_s(0.99),
        "cached_share": report.cached_share,
        "steps_lost": report.lost_steps,
        "late": {**asdict(late), "share": late.share, "valid": late.valid},
        "cpu_s": dict(result.cpu_s),
        "real_s": report.makespan_s / report.speed,
        "moves": migrations | {"not_hidden": migrations["landed"] - migrations["hidden"]},
        "move_setup_s": move_setup_s,
        "simulated": dict(said),
        "journal": None if result.journal is None else result.journal.counts(),
        "core": dict(result.core),
        "planner": dict(result.planner),
    }


def report_of(setting: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "setting": dict(setting),
        "machine": asdict(machine.describe()),
        "lower_bound_s": rows[0]["simulated"]["lower_bound_s"],
        "runs": list(rows),
    }


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """One report of several. Raises ReportMismatch, OSError, ValueError."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    first: dict[str, Any] = reports[0]
    for path, other in zip(paths[1:], reports[1:], strict=True):
        for name in sorted(first["setting"].keys() | other["setting"].keys()):
            mine, theirs = first["setting"].get(name), other["setting"].get(name)
            if mine != theirs:
                raise ReportMismatch(f"{path}: {name} is {theirs!r}, in {paths[0]} it is {mine!r}")
    return first | {"runs": [row for report in reports for row in report["runs"]]}


def show(report: Mapping[str, Any]) -> None:
    setting, runs = report["setting"], report["runs"]
    print(
        f"\n{setting['trajectories']} trajectories ({setting['groups']} groups x {setting['samples']}),"
        f" {setting['steps']} steps under each policy, emulated workers of MP degree {setting['tp']} with"
        f" {setting['slots']} slots, clock x{setting['speed']:g}; emulated seconds. Lower bound"
        f" {report['lower_bound_s']:.0f} s.\n"
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
            "#late",
            "#lost",
        ),
        [
            (
                row["arm"],
                f"{row['makespan_s']:.0f} s",
                f"{row['simulated_makespan_s']:.0f} s",
                f"{row['to_simulated']:.2f}",
                f"{row['median_s']:.0f} s",
                f"{row['p99_s']:.0f} s",
                f"{row['cached_share']:.1%}",
                f"{row['late']['share']:.1%}" + ("" if row["late"]["valid"] else " INVALID"),
                row["steps_lost"],
            )
            for row in runs
        ],
    )
    print(
        "\nlate: what the machine added to the makespan (HTTP, Python, busy processors), of the makespan; a"
        f" row above {VALID_SHARE:.0%} measured the machine, not the policy."
    )
    _show_gain(runs)
    for row in runs:
        _show_cpu(row)
    for row in runs:
        if row["journal"] is not None:
            _show_decisions(row)


def _show_gain(runs: Sequence[Mapping[str, Any]]) -> None:
    times: dict[str, list[float]] = {}
    for row in runs:
        times.setdefault(row["arm"], []).append(row["makespan_s"])
    middle = {name: median(values) for name, values in times.items()}
    others = {name: value for name, value in middle.items() if name != "heddle"}
    if "heddle" in middle and others:
        best = min(others, key=lambda name: others[name])
        gain = others[best] / middle["heddle"]
        print(f"heddle's rollout ends {gain:.2f} times as fast as under {best}, the best of the others.")


def _show_cpu(row: Mapping[str, Any]) -> None:
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["cpu_s"].items())
    total = sum(row["cpu_s"].values())
    print(
        f"{row['arm']}: {row['real_s']:.0f} real seconds, processor seconds: {parts}"
        f" ({total / row['real_s']:.2f} of a core)"
    )


def _show_decisions(row: Mapping[str, Any]) -> None:
    journal, moves, planner = row["journal"], row["moves"], row["planner"]
    late = round(planner.get("heddle_planner_forecasts_late_total", 0))
    print(
        f"\n{row['arm']}, by its journal: {journal['predictions']} predictions in tool gaps ({late} more came"
        f" too late), {journal['re_ranks']} of them re-ranks; {journal['plans']} plans with shares put in"
        " force."
        f"\nMoves of KV: {moves['requested']} wanted, {moves['started']} begun, {moves['landed']} landed"
        f" ({row['move_setup_s']:.2f} emulated seconds each beside the transfer):"
        f" {moves['hidden']} hidden in the tool gap in full, {moves['not_hidden']} not ({moves['waited_for']}"
        f" were waited for); {moves['cancelled']} called off, {moves['failed']} failed, {moves['expired']}"
        f" expired. The next step's cache showed {moves['found']}, and did not show {moves['not_found']}."
    )
