"""``heddle grid``: the paper's evaluation in one table, with what no policy can reach.

A cell is written to ``--out`` as a line of JSON as soon as it is done; cells that are there already are not
run again, so a grid that was stopped goes on where it was.

Exit codes: 0 done, 1 a run did not come to its end, 2 the input does not fit.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle_planner.simulate.cli import INPUT_ERRORS
from heddle_planner.simulate.fleet import parse_degrees
from heddle_planner.simulate.paper_grid import (
    BASELINES,
    DOMAINS,
    MODELS,
    RESOURCE_MANAGER,
    WANTED,
    WITHOUT,
    CellSpec,
    run_cell,
)
from heddle_planner.simulate.results import describe

app = typer.Typer(help="The paper's grid: baselines, ablations and what bounds them.", add_completion=False)

Record = dict[str, Any]


@app.command()
def grid(
    out: Annotated[Path, typer.Option(help="JSON lines, one a cell; what is there is not run again.")],
    domains: Annotated[str, typer.Option(help="Comma-separated domains.")] = ",".join(DOMAINS),
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = ",".join(MODELS),
    gpu: Annotated[str, typer.Option(help="h100 or h200.")] = "h100",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the cluster.")] = 64,
    trajectories: Annotated[int, typer.Option(min=1, help="Of each rollout.")] = 6400,
    degrees: Annotated[str, typer.Option(help="MP degrees a worker may have.")] = "1,2,4,8",
    prediction: Annotated[str, typer.Option(help="Kind, as of `heddle simulate`.")] = "calibrated",
    max_context: Annotated[int, typer.Option(min=1, help="Context at which an agent stops.")] = 131_072,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    plans: Annotated[
        bool, typer.Option(help="Rehearse the solver's mix and its plans; without: equal workers, no plan.")
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at a time, a process each.")] = 1,
) -> None:
    """Every domain on every model: baselines at the usual and at their best degree, Heddle, and its parts."""
    try:
        allowed = tuple(parse_degrees(degrees))
        cells = [
            CellSpec(
                domain=_known(domain.strip(), DOMAINS, "--domains"),
                model=_known(model.strip(), MODELS, "--models"),
                gpu=gpu,
                gpus=gpus,
                trajectories=trajectories,
                degrees=allowed,
                prediction=prediction,
                max_context=max_context,
                seed=seed,
                plans=plans,
            )
            for domain in domains.split(",")
            for model in models.split(",")
        ]
        done = _read(out)
        missing = [cell for cell in cells if _key(cell) not in done]
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as lines:
            for record in _run(missing, jobs):
                lines.write(json.dumps(record) + "\n")
                lines.flush()
                done[json.dumps(record["spec"], sort_keys=True)] = record
    except (*INPUT_ERRORS, ValueError, OSError) as error:
        typer.echo(f"heddle grid: {error}", err=True)
        raise typer.Exit(2) from error
    except RuntimeError as error:
        typer.echo(f"heddle grid: {error}", err=True)
        raise typer.Exit(1) from error
    for line in table([done[_key(cell)] for cell in cells]):
        typer.echo(line)


def _known(name: str, names: Sequence[str], option: str) -> str:
    if name not in names:
        raise ValueError(f"{option}: {name!r} is none of {', '.join(names)}")
    return name


def _key(cell: CellSpec) -> str:
    fields = {name: getattr(cell, name) for name in cell.__slots__}
    return json.dumps(fields, sort_keys=True)


def _read(path: Path) -> dict[str, Record]:
    """Cells that are done, by what they are of. Raises ValueError that names the line of a broken one."""
    if not path.exists():
        return {}
    found: dict[str, Record] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            found[json.dumps(record["spec"], sort_keys=True)] = record
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--out: {path} line {number} is no cell of this command; remove it or give another file"
            ) from error
    return found


def _run(cells: Sequence[CellSpec], jobs: int) -> Iterator[Record]:
    if jobs == 1 or len(cells) < 2:
        yield from map(run_cell, cells)
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in cells]):
            yield future.result()


def table(records: Sequence[Record]) -> Iterator[str]:
    """Three tables: against the baselines, what is wanted and can be had at all, and without one part."""
    yield "x usual, x best: how many times faster Heddle is than the baseline at its usual, its best degree"
    yield "at most: the most that x best can be for any schedule, the baseline's makespan over the bound"
    yield f"{'domain':8} {'model':10} {'bound':>8} {'Heddle':>8} {'x bound':>7}  {'workers':14}" + "".join(
        f" | {name:>11} {'x usual':>7} {'x best':>6} {'at most':>7}" for name in BASELINES
    )
    for record in records:
        heddle, bound = record["heddle"]["makespan_s"], record["lower_bound_s"]
        yield (
            f"{_name(record)} {bound:6.0f} s {heddle:6.0f} s {heddle / bound:7.2f}"
            f"  {describe(record['heddle']['workers']):14}"
        ) + "".join(
            f" | {found['best_s']:9.0f} s {found['usual_s'] / heddle:7.2f} {found['best_s'] / heddle:6.2f}"
            f" {found['best_s'] / bound:7.2f}"
            for found in (record["baselines"][name] for name in BASELINES)
        )
    yield ""
    wanted = "  ".join(f"{name} {factor:g}" for name, factor in WANTED.items())
    yield f"wanted of x best: {wanted}; where it is missed, how near the bound Heddle would have to come"
    yield f"{'domain':8} {'model':10}" + "".join(f" | {name:>24}" for name in BASELINES)
    for record in records:
        yield _name(record) + "".join(f" | {_verdict(record, name):>24}" for name in BASELINES)
    yield ""
    parts = (*WITHOUT, RESOURCE_MANAGER)
    yield "how many times longer Heddle takes without one part"
    yield f"{'domain':8} {'model':10}" + "".join(f" {part:>16}" for part in parts)
    for record in records:
        heddle = record["heddle"]["makespan_s"]
        yield _name(record) + "".join(f" {record['without'][part] / heddle:16.2f}" for part in parts)


def _verdict(record: Record, baseline: str) -> str:
    """Whether what is wanted against a baseline at its best degree is there, or can be had at all."""
    best, bound = record["baselines"][baseline]["best_s"], record["lower_bound_s"]
    if best >= WANTED[baseline] * record["heddle"]["makespan_s"]:
        return "there"
    if best < WANTED[baseline] * bound:
        return f"out of reach, {best / bound:.2f}"
    return f"missed, {best / WANTED[baseline] / bound:.2f} x bound"


def _name(record: Record) -> str:
    return f"{record['spec']['domain']:8} {record['spec']['model']:10}"
