"""``heddle fleet``: which engines run on which GPUs, and how to get to other MP degrees.

Exit codes: 0 done, 1 a move failed, 2 what is wanted cannot be, 3 a host cannot be asked.
"""

import asyncio
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_contracts.fleet import HostStatus
from heddle_core import CostName

from heddle_planner.fleet.hosts import HostError, Hosts, MoveFailed
from heddle_planner.fleet.shape import Move, Reshaping, ShapeError, reshape
from heddle_planner.plan_lengths import LengthsError, Problem, plan_lengths, read_lengths
from heddle_planner.profiles import ProfileError, load_profile

KEY_VARIABLE: Final = "HEDDLE_HOST_KEY"
UNKNOWN_START_S: Final = 120.0
"""What a start is taken to cost where no host has measured one."""

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Engines on the hosts' GPUs, and their MP degrees."
)

HostUrls = Annotated[
    list[str],
    typer.Option(
        "--host", envvar="HEDDLE_HOSTS", help="URL of a `heddle host`; may be given more than once."
    ),
]
Degrees = Annotated[
    str | None, typer.Option("--degrees", help="MP degrees that are wanted, such as 8,4,2,1,1.")
]
LengthsFile = Annotated[
    Path | None,
    typer.Option("--lengths", help="Plan the degrees for these lengths instead (as heddle plan)."),
]
ProfileName = Annotated[str, typer.Option("--profile", help="Worker profile to plan with.")]
Allowed = Annotated[str, typer.Option("--allowed", help="Degrees that a plan may use.")]
Floor = Annotated[
    float, typer.Option("--floor", help="Share of the GPUs serving now that serve at all times, 0 to 1.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Worth:
    """Planned makespans of the lengths, seconds; ``restart_s``: what the starts take, one after the other."""

    now_s: float
    then_s: float
    restart_s: float

    @property
    def pays(self) -> bool:
        return self.now_s > self.then_s + self.restart_s


@app.command("status")
def status(host: HostUrls, as_json: AsJson = False) -> None:
    """Hosts and their engines."""

    async def ask() -> dict[str, HostStatus]:
        async with Hosts(host, os.environ.get(KEY_VARIABLE)) as hosts:
            return await hosts.status()

    found = _run(ask())
    if as_json:
        typer.echo(json.dumps({"items": [one.model_dump(mode="json") for one in found.values()]}, indent=2))
        return
    for one in found.values():
        typer.echo(f"{one.name}: {one.gpus} GPUs{', emulated' if one.emulated else ''}")
        for engine in one.engines:
            gpus = ",".join(map(str, engine.gpus))
            typer.echo(
                f"  {engine.id:<5} {engine.state:<9} degree {engine.degree:<3} GPUs {gpus:<16} "
                f"{engine.url or ''} {engine.detail}".rstrip()
            )


@app.command("plan")
def plan(
    host: HostUrls,
    degrees: Degrees = None,
    lengths: LengthsFile = None,
    profile: ProfileName = "qwen3-8b",
    allowed: Allowed = "1,2,4,8",
    floor: Floor = 0.5,
    as_json: AsJson = False,
) -> None:
    """The moves to other degrees; nothing is done."""
    moves, worth = _run(_planned(host, degrees, lengths, profile, allowed, floor))
    _show(moves, worth, as_json)


@app.command("apply")
def apply(
    host: HostUrls,
    degrees: Degrees = None,
    lengths: LengthsFile = None,
    profile: ProfileName = "qwen3-8b",
    allowed: Allowed = "1,2,4,8",
    floor: Floor = 0.5,
    even_if_it_does_not_pay: Annotated[
        bool, typer.Option("--force", help="Also where the restarts cost more than they gain.")
    ] = False,
    move_timeout: Annotated[float, typer.Option(min=1, help="Seconds that one move may take.")] = 1800.0,
    as_json: AsJson = False,
) -> None:
    """Re-shape: drain, stop and start engines, one move at a time, until the degrees are as wanted."""

    async def carry_out() -> tuple[Reshaping, Worth | None]:
        moves, worth = await _planned(host, degrees, lengths, profile, allowed, floor)
        if worth is not None and not worth.pays and not even_if_it_does_not_pay:
            raise ShapeError(f"{_words(worth)}: left as it is (--force does it all the same)")
        async with Hosts(host, os.environ.get(KEY_VARIABLE)) as hosts:
            await hosts.status()
            await hosts.carry_out(moves, lambda move: typer.echo(_line(move), err=as_json), move_timeout)
        return moves, worth

    moves, worth = _run(carry_out())
    if as_json:
        _show(moves, worth, as_json)
    else:
        typer.echo(f"done: {_degrees(moves.before)} is now {_degrees(moves.after)}")


async def _planned(
    urls: list[str], degrees: str | None, lengths: Path | None, profile: str, allowed: str, floor: float
) -> tuple[Reshaping, Worth | None]:
    if (degrees is None) == (lengths is None):
        raise ShapeError("--degrees: give either --degrees or --lengths")
    async with Hosts(urls, os.environ.get(KEY_VARIABLE)) as hosts:
        found = await hosts.status()
    if degrees is not None:
        return reshape(found, _integers("--degrees", degrees), floor), None
    assert lengths is not None
    read = read_lengths(lengths)
    known = load_profile(profile)
    gpus = sum(one.gpus for one in found.values())
    usable = tuple(one for one in _integers("--allowed", allowed) if one in known.degrees)
    cost: CostName = "simulated" if known.has_steps else "size_only"
    best = plan_lengths(read, Problem(known, gpus, usable, cost=cost))
    moves = reshape(found, [group["degree"] for group in best["workers"]], floor)
    if not moves.before:
        return moves, None
    now = plan_lengths(read, Problem(known, gpus, usable, cost=cost, workers=moves.before))
    measured = [
        engine.started_in_s
        for one in found.values()
        for engine in one.engines
        if engine.started_in_s is not None
    ]
    start_s = max(measured, default=UNKNOWN_START_S)
    return moves, Worth(now["makespan"], best["makespan"], start_s * moves.starts)


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except (ShapeError, LengthsError, ProfileError, ValueError) as error:
        typer.echo(f"heddle fleet: {error}", err=True)
        raise typer.Exit(2) from error
    except MoveFailed as error:
        typer.echo(f"heddle fleet: {error}", err=True)
        raise typer.Exit(1) from error
    except HostError as error:
        typer.echo(f"heddle fleet: {error}", err=True)
        raise typer.Exit(3) from error


def _show(moves: Reshaping, worth: Worth | None, as_json: bool) -> None:
    if as_json:
        found = asdict(moves) | {"worth": None if worth is None else asdict(worth) | {"pays": worth.pays}}
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{_degrees(moves.before) or 'nothing'} to {_degrees(moves.after)}")
    for move in moves.moves:
        typer.echo(_line(move))
    if worth is not None:
        typer.echo(_words(worth))
    typer.echo(f"at least {moves.lowest} of {moves.total} GPUs serve at all times")


def _line(move: Move) -> str:
    gpus = ",".join(map(str, move.gpus))
    engine = f" ({move.engine})" if move.engine else ""
    what = f"{move.kind:<5} degree {move.degree} on {move.host}, GPUs {gpus}{engine}"
    return f"  {what}; {move.serving} GPUs serve"


def _words(worth: Worth) -> str:
    return (
        f"planned makespan {worth.now_s:.0f} s as it is, {worth.then_s:.0f} s then; "
        f"the restarts take {worth.restart_s:.0f} s"
    )


def _degrees(degrees: tuple[int, ...]) -> str:
    return "+".join(map(str, degrees))


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ShapeError(f"{option}: {text!r} is not a list of numbers such as 8,4,2,1,1") from None
