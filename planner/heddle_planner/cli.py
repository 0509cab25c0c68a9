"""The planner's commands: ``heddle plan`` and ``heddle profile``.

Exit codes: 0 done, 2 the input does not fit (the message names the file, the line or the option, and what is
wanted), 3 the worker to profile cannot be reached or does not answer as a worker does.
"""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import CostName, SolverName

from heddle_planner.plan_lengths import (
    LengthsError,
    PlanOfLengths,
    Problem,
    plan_lengths,
    read_lengths,
)
from heddle_planner.profiles import ProfileError, load_profile, packaged_names
from heddle_planner.profiles.measuring import LadderSettings, WorkerProfileError, measure

app = typer.Typer(help="Plan who goes where, and on how many GPUs.", add_completion=False)
profile_app = typer.Typer(help="Measure a live worker and write its profile.", add_completion=False)


class Solver(StrEnum):
    """Names of the solvers."""

    DP = "dp"
    ANNEAL = "anneal"
    EXACT = "exact"


class Cost(StrEnum):
    """Names of the costs."""

    SIZE_ONLY = "size_only"
    SIMULATED = "simulated"


class Method(StrEnum):
    """How a worker is measured."""

    LADDER = "ladder"
    MOMENTS = "moments"


_SOLVERS: dict[Solver, SolverName] = {Solver.DP: "dp", Solver.ANNEAL: "anneal", Solver.EXACT: "exact"}
_COSTS: dict[Cost, CostName] = {Cost.SIZE_ONLY: "size_only", Cost.SIMULATED: "simulated"}


@app.command()
def plan(
    lengths: Annotated[
        Path,
        typer.Option(
            help="Predicted output tokens: one number a line, or JSON lines {id, predicted, sigma?}."
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that the workers may occupy together.")],
    profile: Annotated[
        str,
        typer.Option(
            help="Name of a packaged profile, a profile file, or its short form"
            ' {"degrees": {"1": {"T": 0.01, "F": [1.0, 1.02]}}}.'
        ),
    ],
    degrees: Annotated[
        str | None,
        typer.Option(help="MP degrees a worker may have, such as 1,2,4,8; all of the profile if not given."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Fixed workers by MP degree, such as 8,2,2,1: placement only.")
    ] = None,
    solver: Annotated[
        Solver, typer.Option(help="dp: presorted DP; anneal: annealed degrees; exact: optimal.")
    ] = Solver.EXACT,
    cost: Annotated[
        Cost | None,
        typer.Option(
            help="size_only: longest x T x F(size); simulated: slots, KV, prefill, tools, uncertainty."
            " Default: simulated where the profile suffices."
        ),
    ] = None,
    context_tokens: Annotated[
        float, typer.Option(min=0, help="Tokens a trajectory holds in the KV cache now.")
    ] = 0.0,
    cold_tokens: Annotated[float, typer.Option(min=0, help="Tokens of it to prefill first.")] = 0.0,
    input_per_output: Annotated[
        float, typer.Option(min=0, help="Tokens of tool results for each output token.")
    ] = 0.0,
    tool_seconds_per_output: Annotated[
        float, typer.Option(min=0, help="Seconds of tool gap for each output token.")
    ] = 0.0,
    aggregate_below: Annotated[
        float,
        typer.Option(
            min=0, help="dp: keep trajectories shorter than this together in blocks of as many tokens."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="anneal: seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut trajectories into groups, one a worker, of the least makespan."""
    try:
        worker_profile = load_profile(profile)
        read = read_lengths(lengths)
        chosen = cost or (Cost.SIMULATED if worker_profile.has_steps else Cost.SIZE_ONLY)
        result = plan_lengths(
            read,
            Problem(
                profile=worker_profile,
                gpus=gpus,
                degrees=_integers("--degrees", degrees)
                if degrees is not None
                else tuple(worker_profile.degrees),
                workers=_integers("--workers", workers) if workers is not None else (),
                solver=_SOLVERS[solver],
                cost=_COSTS[chosen],
                context_tokens=context_tokens,
                cold_tokens=cold_tokens,
                input_per_output=input_per_output,
                tool_seconds_per_output=tool_seconds_per_output,
                aggregate_below=aggregate_below,
                seed=seed,
            ),
        )
    except (LengthsError, ProfileError) as error:
        raise _refused(str(error)) from error
    except ValueError as error:
        raise _refused(f"{error}") from error
    typer.echo(json.dumps(result) if as_json else _table(result))


@profile_app.command()
def profile(
    url: Annotated[
        str | None, typer.Argument(help="Base URL of the worker, such as http://gpu1:30000.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output if not given.")] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="ladder: send batches of growing size to an otherwise idle worker; moments: fit SGLang's"
            " own counters"
            " (/v1/loads decode_moments), sending nothing."
        ),
    ] = Method.LADDER,
    degree: Annotated[
        int | None, typer.Option(min=1, help="MP degree, where the worker does not say it.")
    ] = None,
    batches: Annotated[str, typer.Option(help="Batch sizes of the ladder.")] = "1,2,4,8,16,32,64",
    tokens: Annotated[int, typer.Option(min=8, help="Output tokens of each request of the ladder.")] = 64,
    context: Annotated[int, typer.Option(min=64, help="Prompt tokens of the ladder's long requests.")] = 2048,
    api_key: Annotated[str | None, typer.Option(help="Bearer token, if the worker wants one.")] = None,
    list_packaged: Annotated[
        bool, typer.Option("--list", help="List the packaged profiles and end.")
    ] = False,
) -> None:
    """Measure a worker; several runs into one --out file put their degrees side by side."""
    if list_packaged:
        for name in packaged_names():
            typer.echo(name)
        return
    if url is None:
        raise _refused("URL: missing; give the worker's base URL, such as http://gpu1:30000")
    try:
        settings = LadderSettings(
            batches=_integers("--batches", batches),
            tokens=tokens,
            long_prompt=context,
            degree=degree,
            api_key=api_key,
        )
        before = _profile_at(out) if out is not None else None
        measured = measure(url, settings, from_moments=method is Method.MOMENTS)
    except WorkerProfileError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(3) from error
    except ValueError as error:
        raise _refused(str(error)) from error
    if before is not None:
        measured = _beside(before, measured, str(out))
    text = measured.model_dump_json(indent=1)
    if out is None:
        typer.echo(text)
    else:
        _put(out, text + "\n")
        typer.echo(
            f"{out}: {measured.model}, MP degrees {', '.join(str(degree) for degree in measured.degrees)}"
        )


def _profile_at(out: Path) -> WorkerProfile | None:
    """What the file holds, None where it is not there. Before anything is measured: raises ValueError where
    nothing can be written there.
    """
    if out.is_dir():
        raise ValueError(f"--out: {out} is a folder; name a file in it")
    if not out.parent.is_dir():
        raise ValueError(f"--out: {out.parent} is not there; make it first")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out: {out.parent} cannot be written to")
    return load_profile(str(out)) if out.is_file() else None


def _put(out: Path, text: str) -> None:
    """The file is there whole or as it was. What was measured is printed where it cannot be written."""
    out = out.resolve()
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        if out.exists() and not out.is_file():  # a pipe or a terminal
            out.write_text(text, encoding="utf-8")
            return
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        typer.echo(text, nl=False)
        typer.echo(f"--out: {out}: {error.strerror}; what was measured is printed instead", err=True)
        raise typer.Exit(1) from error


def _beside(before: WorkerProfile, measured: WorkerProfile, where: str) -> WorkerProfile:
    """The measured degrees beside those of the file. Another model's are not mixed in."""
    if before.model != measured.model:
        raise _refused(
            f"{where}: field model: is {before.model!r}, the worker serves {measured.model!r}; write"
            f" another file"
        )
    return measured.model_copy(
        update={
            "degrees": dict(sorted({**before.degrees, **measured.degrees}.items())),
            "sources": {**before.sources, **measured.sources},
        }
    )


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or any(value < 1 for value in values):
        raise ValueError(f"{option}: {text!r} is no list of integers >= 1; give for example 8,4,2,1")
    return values


def _table(plan: PlanOfLengths) -> str:
    lines = [f"{'worker':>6}  {'degree':>6}  {'trajectories':>12}  {'seconds':>10}"]
    lines.extend(
        f"{number:>6}  {worker['degree']:>6}  {len(worker['members']):>12}  {worker['cost']:>10.2f}"
        for number, worker in enumerate(plan["workers"], start=1)
    )
    lines.append(
        f"makespan {plan['makespan']:.2f} s on {plan['gpus_used']} GPUs, solved in"
        f" {1e3 * plan['seconds']:.2f} ms"
    )
    return "\n".join(lines)


def _refused(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)
