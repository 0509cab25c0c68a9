"""Plots of a comparison: makespans, active trajectories over time, completion times, and who ran when.

Colours are by row and the same in all plots; Heddle's rows are strong, baselines light. Axes carry units.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from heddle_planner.simulate.comparison import Comparison, Outcome
from heddle_planner.simulate.results import describe

OURS: Final = ("#b0413e", "#d98841", "#7b3f61", "#c9a227")
THEIRS: Final = ("#3d6b8e", "#6fa3c7", "#5b8c5a", "#8fb996", "#7f7f9a", "#a3a3b8", "#4f4f4f", "#9a9a9a")
WORKERS_SHOWN: Final = 6
"""Workers in the timeline: the first and last of the list, which differ most."""
LANES_SHOWN: Final = 48
"""Lanes of one worker; more than its batch holds are left out."""


def write_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes the four plots as PNG into ``folder`` and gives their paths. Runs must have kept their
    timeline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    colours = _colours(comparison.outcomes)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figures = {
            "makespan": _makespans(comparison, colours),
            "active": _active(comparison, colours),
            "completion": _completion(comparison, colours),
            "timeline": _timeline(comparison),
        }
        paths = []
        for name, figure in figures.items():
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=150, bbox_inches="tight")
            paths.append(path)
    return paths


def _colours(outcomes: Sequence[Outcome]) -> dict[str, str]:
    ours = iter(OURS * len(outcomes))
    theirs = iter(THEIRS * len(outcomes))
    return {outcome.row.name: next(theirs if outcome.row.baseline else ours) for outcome in outcomes}


def _label(outcome: Outcome) -> str:
    return f"{outcome.row.name} ({describe(outcome.report['degrees'])})"


def _makespans(comparison: Comparison, colours: Mapping[str, str]) -> Figure:
    outcomes = sorted(comparison.outcomes, key=lambda outcome: -outcome.makespan)
    figure = Figure(figsize=(8, 0.45 * len(outcomes) + 1.6))
    axes = figure.subplots()
    for place, outcome in enumerate(outcomes):
        axes.barh(place, outcome.makespan, color=colours[outcome.row.name])
        axes.text(outcome.makespan, place, f" {outcome.makespan:.0f} s", va="center")
        if outcome.usual is not None and outcome.usual["makespan_s"] > outcome.makespan:
            axes.plot(outcome.usual["makespan_s"], place, "|", color="black", markersize=12)
    axes.axvline(comparison.lower_bound_s, color="black", linestyle="--", linewidth=1)
    axes.text(
        comparison.lower_bound_s, len(outcomes) - 0.4, "lower bound", ha="center", va="bottom", fontsize=9
    )
    axes.set_yticks(range(len(outcomes)), [_label(outcome) for outcome in outcomes])
    axes.set_xlabel("makespan (s); a bar at its best workers, a tick at the usual degree")
    axes.margins(x=0.1)
    return figure


def _active(comparison: Comparison, colours: Mapping[str, str]) -> Figure:
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    for outcome in comparison.outcomes:
        seconds, count = zip(*outcome.report["active"], strict=True)
        axes.plot(seconds, count, color=colours[outcome.row.name], label=_label(outcome), **_width(outcome))
    axes.set_xlabel("time (s)")
    axes.set_ylabel("active trajectories")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _completion(comparison: Comparison, colours: Mapping[str, str]) -> Figure:
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    for outcome in comparison.outcomes:
        ended = sorted(second for second in outcome.report["completion_s"] if second is not None)
        share = [(place + 1) / len(ended) for place in range(len(ended))]
        axes.step(
            ended,
            share,
            where="post",
            color=colours[outcome.row.name],
            label=_label(outcome),
            **_width(outcome),
        )
    axes.set_xlabel("completion time of a trajectory (s)")
    axes.set_ylabel("share of trajectories completed")
    axes.set_ylim(0, 1.01)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _width(outcome: Outcome) -> dict[str, Any]:
    return {"linewidth": 1.2 if outcome.row.baseline else 2.4, "zorder": 1 if outcome.row.baseline else 2}


def _timeline(comparison: Comparison) -> Figure:
    """Heddle (or the first row) above, the best baseline below; a strip for each of a few workers."""
    shown = [outcome for outcome in comparison.outcomes if not outcome.row.baseline][:1]
    if comparison.best_baseline is not None:
        shown.append(comparison.best_baseline)
    if not shown:
        shown = list(comparison.outcomes[:1])
    figure = Figure(figsize=(11, 4.2 * len(shown)))
    axes_list = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    last = max(outcome.makespan for outcome in shown)
    longest = max(max(outcome.report["lengths"]) for outcome in shown)
    scale = LogNorm(vmin=max(1, longest / 300), vmax=longest)
    for axes, outcome in zip(axes_list, shown, strict=True):
        _strips(axes, outcome, scale)
        axes.set_xlim(0, last)
        axes.set_title(f"{_label(outcome)}: {outcome.makespan:.0f} s", loc="left", fontsize=10)
    axes_list[-1].set_xlabel("time (s)")
    colour_bar = figure.colorbar(
        mpl.cm.ScalarMappable(norm=scale, cmap="viridis_r"), ax=list(axes_list), fraction=0.02, pad=0.01
    )
    colour_bar.set_label("output tokens of the trajectory")
    return figure


def _strips(axes: Axes, outcome: Outcome, scale: LogNorm) -> None:
    degrees = outcome.report["degrees"]
    workers = _chosen(len(degrees))
    ticks, names = [], []
    base = 0
    for worker in reversed(workers):
        stays = sorted(
            (stay for stay in outcome.report["timeline"] if stay["worker"] == worker),
            key=lambda stay: (stay["from_s"], stay["trajectory"]),
        )
        lanes: list[float] = []
        boxes, lengths = [], []
        for stay in stays:
            lane = next((i for i, free in enumerate(lanes) if free <= stay["from_s"]), len(lanes))
            if lane == len(lanes):
                lanes.append(0.0)
            lanes[lane] = stay["to_s"]
            if lane < LANES_SHOWN:
                low, left, right = base + lane, stay["from_s"], stay["to_s"]
                boxes.append([(left, low), (left, low + 0.9), (right, low + 0.9), (right, low)])
                lengths.append(outcome.report["lengths"][stay["trajectory"]])
        strip = PolyCollection(boxes, cmap="viridis_r", norm=scale, linewidths=0)
        strip.set_array(lengths)
        axes.add_collection(strip)
        height = max(1, min(LANES_SHOWN, len(lanes)))
        ticks.append(base + height / 2)
        names.append(f"worker {worker} (TP{degrees[worker]})")
        base += height + 2
    axes.set_ylim(0, base)
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", length=0)


def _chosen(workers: int) -> list[int]:
    if workers <= WORKERS_SHOWN:
        return list(range(workers))
    half = WORKERS_SHOWN // 2
    return [*range(half), *range(workers - half, workers)]
