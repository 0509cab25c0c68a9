"""``heddle compare``: many comparisons in one table, with what has to hold at its foot.

Exit codes: 0 done, 1 a run did not come to its end, 2 the input does not fit, 3 with ``--check`` when a
policy is slower than ``--tolerance`` allows anywhere.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle_planner.simulate.cli import INPUT_ERRORS
from heddle_planner.simulate.fleet import parse_degrees, parse_workers
from heddle_planner.simulate.grid import Cell, Grid, run_grid
from heddle_planner.simulate.policies import parse_policies
from heddle_planner.simulate.results import describe
from heddle_planner.simulate.sources import Source

app = typer.Typer(help="Compare policies on many workloads, models and conditions.", add_completion=False)

BASELINES = "verl,verl_hybrid,slime,autellix"


@app.command()
def compare(
    workloads: Annotated[str, typer.Option(help="Comma-separated: coding, search, math, or files.")],
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = "qwen3-8b",
    gpu: Annotated[str, typer.Option(help="h100 or h200.")] = "h100",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the cluster.")] = 8,
    trajectories: Annotated[
        int | None, typer.Option(min=1, help="Of each rollout; default: as many as fit the unscaled KV.")
    ] = None,
    kv_scales: Annotated[
        str, typer.Option(help="Factors on every worker's KV; 0.25 oversubscribes a fitting load 4x.")
    ] = "1,0.25",
    predictions: Annotated[
        str, typer.Option(help="Comma-separated kinds, as of `heddle simulate`.")
    ] = "calibrated,noise",
    policies: Annotated[str, typer.Option(help="Rows; baselines among them.")] = f"heddle,{BASELINES}",
    degrees: Annotated[str, typer.Option(help="MP degrees a worker may have.")] = "1,2,4,8",
    group: Annotated[int | None, typer.Option(min=1, help="Samples a prompt.")] = None,
    scale_output: Annotated[float, typer.Option(min=0.001, help="Multiplies output tokens.")] = 1.0,
    max_context: Annotated[int, typer.Option(min=1, help="Context at which an agent stops.")] = 131_072,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    plans: Annotated[
        bool, typer.Option(help="Rehearse the solver's mix and its plans; without: equal workers, no plan.")
    ] = True,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Degrees of the workers that all run on, such as 2,1,1, instead of --gpus and --degrees."
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests a worker runs at once; default: the profile's.")
    ] = None,
    over: Annotated[
        float, typer.Option(min=0, help="Seconds within which trajectories begin at random; 0: all at once.")
    ] = 0.0,
    check: Annotated[
        bool, typer.Option(help="Fail when a policy of ours is slower than the best baseline anywhere.")
    ] = False,
    tolerance: Annotated[float, typer.Option(min=0, help="Share by which it may be.")] = 0.02,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the cells here.")] = None,
) -> None:
    """Every workload on every model, at every KV scale, with every prediction."""
    try:
        rows = parse_policies(policies)
        ours = [row.name for row in rows if not row.baseline]
        given = parse_workers(workers) if workers else []
        grid = Grid(
            sources=[Source(name.strip(), group, scale_output, over_s=over) for name in workloads.split(",")],
            profiles=[f"{model.strip()}-{gpu}" for model in models.split(",")],
            kv_scales=[float(scale) for scale in kv_scales.split(",")],
            predictions=[prediction.strip() for prediction in predictions.split(",")],
            gpus=sum(given) or gpus,
            degrees=sorted(set(given)) or parse_degrees(degrees),
            trajectories=trajectories,
            max_context=max_context,
            seed=seed,
            plans=plans,
            workers=given,
            slots=slots,
        )
        typer.echo(_head(ours))
        cells = []
        for cell in run_grid(grid, rows):
            cells.append(cell)
            typer.echo(_line(cell, ours))
    except (*INPUT_ERRORS, ValueError) as error:
        typer.echo(f"heddle compare: {error}", err=True)
        raise typer.Exit(2) from error
    except RuntimeError as error:
        typer.echo(f"heddle compare: {error}", err=True)
        raise typer.Exit(1) from error
    for name in ours:
        typer.echo(_foot(cells, name))
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps([_record(cell) for cell in cells]) + "\n", encoding="utf-8")
    slower = [cell for cell in cells for name in ours if cell.ratio(name) < 1 - tolerance]
    if check and slower:
        typer.echo(f"heddle compare: slower than the best baseline in {len(slower)} cells", err=True)
        raise typer.Exit(3)


def _head(ours: Sequence[str]) -> str:
    columns = "".join(f"{name[:26]:>28} {'x best':>7} {'x bound':>7}" for name in ours)
    cell = f"{'workload':22} {'model':14} {'KV':>5} {'prediction':>12} {'n':>5}"
    return f"{cell} {'best baseline':>24} {'at most':>7}{columns}"


def _line(cell: Cell, ours: Sequence[str]) -> str:
    best = cell.comparison.best_baseline
    by_name = {outcome.row.name: outcome for outcome in cell.comparison.outcomes}
    against = "-"
    if best is not None:
        against = f"{best.row.name} {describe(best.report['degrees'])} {best.makespan:.0f} s"
    columns = "".join(
        f"{describe(by_name[name].report['degrees']):>18} {by_name[name].makespan:7.0f} s"
        f" {cell.ratio(name):7.2f} {cell.over_bound(name):7.2f}"
        for name in ours
    )
    return (
        f"{Path(cell.source).name[:22]:22} {cell.profile:14} {cell.kv_scale:5.2f} {cell.prediction[:12]:>12} "
        f"{len(cell.comparison.problem.scripts):5d} {against:>24} {cell.most:7.2f}{columns}"
    )


def _foot(cells: Sequence[Cell], name: str) -> str:
    """Means and least of the ratios, by prediction."""
    parts = []
    for prediction in dict.fromkeys(cell.prediction for cell in cells):
        ratios = [cell.ratio(name) for cell in cells if cell.prediction == prediction]
        most = statistics.geometric_mean([cell.most for cell in cells if cell.prediction == prediction])
        geometric, arithmetic = statistics.geometric_mean(ratios), statistics.fmean(ratios)
        parts.append(
            f"{prediction}: {geometric:.2f}x the best baseline by geometric mean"
            f" (any schedule: at most {most:.2f}x), {arithmetic:.2f}x by arithmetic mean,"
            f" {min(ratios):.2f}x at least"
        )
    return f"{name}: " + "; ".join(parts)


def _record(cell: Cell) -> dict[str, Any]:
    return {
        "workload": cell.source,
        "profile": cell.profile,
        "kv_scale": cell.kv_scale,
        "prediction": cell.prediction,
        "trajectories": len(cell.comparison.problem.scripts),
        "lower_bound_s": cell.comparison.lower_bound_s,
        "at_most": cell.most,
        "policies": {
            outcome.row.name: {
                "makespan_s": outcome.makespan,
                "workers": outcome.report["degrees"],
                "ratio_to_best_baseline": cell.ratio(outcome.row.name),
                "over_lower_bound": cell.over_bound(outcome.row.name),
                "makespan_s_by_workers": dict(outcome.makespan_by_workers),
            }
            for outcome in cell.comparison.outcomes
        },
    }
