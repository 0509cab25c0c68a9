"""Plots of an evaluation: recall and correlation by step (the paper's Figure 13), and the reliability
curve.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from heddle_planner.predictor.evaluate import AFTER_STEPS, Held
from heddle_planner.predictor.scores import reliability

COLOURS: Final = {"history": "#3d6b8e", "prompt_only": "#6fa3c7"}
OURS: Final = "#b0413e"


def write_plots(name: str, held: Mapping[str, Held], body: Mapping[str, Any], folder: Path) -> list[Path]:
    """``NAME-by-step.png`` and ``NAME-reliability.png``; ``body`` is what `evaluate.report` gave for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figures = {"by-step": _by_step(name, body), "reliability": _reliability(name, held)}
        paths = []
        for kind, figure in figures.items():
            path = folder / f"{name}-{kind}.png"
            figure.savefig(path, dpi=150, bbox_inches="tight")
            paths.append(path)
    return paths


def _by_step(name: str, body: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 3.4))
    measures = (
        ("recall_top10", "recall of the longest 10 %"),
        ("pearson", "Pearson correlation with truth"),
    )
    for place, (measure, label) in enumerate(measures, start=1):
        axes = figure.add_subplot(1, 2, place)
        for model, parts in body.items():
            values = [parts["after_step"][str(step)][measure] for step in AFTER_STEPS]
            known = [(x, value) for x, value in enumerate(values) if value is not None]
            axes.plot(
                [x for x, _ in known],
                [value for _, value in known],
                marker="o",
                color=COLOURS.get(model, OURS),
                label=model,
            )
        axes.set_xticks(range(len(AFTER_STEPS)), [str(step) for step in AFTER_STEPS])
        axes.set_xlabel("steps done when predicted")
        axes.set_ylabel(label)
    figure.axes[0].legend(frameon=False)
    figure.suptitle(f"{name}: what each further step tells")
    return figure


def _reliability(name: str, held: Mapping[str, Held]) -> Figure:
    figure = Figure(figsize=(4.6, 4.2))
    axes = figure.add_subplot()
    largest = 1.0
    for model, one in held.items():
        curve = reliability(one.truth, one.said.mean)
        axes.plot(
            [said for said, _, _ in curve],
            [was for _, was, _ in curve],
            marker="o",
            color=COLOURS.get(model, OURS),
            label=model,
        )
        largest = max(largest, *(max(said, was) for said, was, _ in curve))
    axes.plot([1, largest], [1, largest], color="#999999", linewidth=1, linestyle="--", label="exact")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("predicted remaining tokens (mean of a tenth)")
    axes.set_ylabel("true remaining tokens (mean)")
    axes.set_title(f"{name}: reliability")
    axes.legend(frameon=False)
    return figure
