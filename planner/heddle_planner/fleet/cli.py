"""``heddle fleet``: which engines run on which GPUs, and how to get to other MP degrees.

Exit codes: 0 done, 1 a move failed, 2 what is wanted cannot be, 3 a host cannot be asked.
"""

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_contracts.fleet import HostStatus
from heddle_contracts.keys import first_key

from heddle_planner.fleet.hosts import HostError, Hosts, MoveFailed
from heddle_planner.fleet.lengths_ahead import LengthsAhead
from heddle_planner.fleet.shape import Move, Reshaping, ShapeError, reshape
from heddle_planner.fleet.watching import Look, Rules, look
from heddle_planner.fleet.worth import Worth, best_shape
from heddle_planner.plan_lengths import LengthsError, read_lengths
from heddle_planner.profiles import ProfileError, load_profile

KEY_VARIABLE: Final = "HEDDLE_HOST_KEY"

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
    profile: ProfileName = "qwen3-8b-h100",
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
    profile: ProfileName = "qwen3-8b-h100",
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
            raise ShapeError(f"{worth}: left as it is (--force does it all the same)")
        async with Hosts(host, os.environ.get(KEY_VARIABLE)) as hosts:
            await hosts.status()
            await hosts.carry_out(moves, lambda move: typer.echo(_line(move), err=as_json), move_timeout)
        return moves, worth

    moves, worth = _run(carry_out())
    if as_json:
        _show(moves, worth, as_json)
    else:
        typer.echo(f"done: {_degrees(moves.before)} is now {_degrees(moves.after)}")


@app.command("stop")
def stop(
    host: HostUrls,
    engine: Annotated[
        str, typer.Argument(help="Id as `heddle fleet status` shows it; HOST/ID where two hosts have it.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="At once: steps that run on it are cut off.")
    ] = False,
) -> None:
    """Drain and stop one engine, also one that would not drain before."""

    async def end() -> str:
        async with Hosts(host, os.environ.get(KEY_VARIABLE)) as hosts:
            name, found = one_engine(await hosts.status(), engine)
            asked = await hosts.stop(name, found, force=force)
            return f"{name}: engine {found}, GPUs {','.join(map(str, asked.gpus))}: {asked.state}"

    typer.echo(_run(end()))


def one_engine(hosts: dict[str, HostStatus], wanted: str) -> tuple[str, str]:
    """Host and id. Raises ShapeError."""
    found = [
        (name, one.id)
        for name, status in hosts.items()
        for one in status.engines
        if wanted in (one.id, f"{name}/{one.id}")
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ShapeError(f"no engine {wanted}; heddle fleet status lists them")
    raise ShapeError(f"{wanted}: several hosts have it; write {' or '.join(map('/'.join, found))}")


@app.command("watch")
def watch(
    host: HostUrls,
    gateway: Annotated[
        str, typer.Option(envvar="HEDDLE_GATEWAY", help="URL of the gateway whose trajectories they run.")
    ],
    key: Annotated[
        str | None,
        typer.Option(envvar="HEDDLE_ADMIN_KEYS", help="Admin key of the gateway; the first one of a list."),
    ] = None,
    period: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 60.0,
    act: Annotated[
        bool, typer.Option("--apply", help="Re-shape where it pays; without it that is only said.")
    ] = False,
    profile: ProfileName = "qwen3-8b-h100",
    allowed: Allowed = "1,2,4,8",
    floor: Floor = 0.5,
    move_timeout: Annotated[float, typer.Option(min=1, help="Seconds that one move may take.")] = 1800.0,
    as_json: AsJson = False,
) -> None:
    """Look again and again, also after rollouts, whether other degrees would pay for the restarts."""

    async def go_on() -> None:
        rules = Rules(load_profile(profile), _integers("--allowed", allowed), floor, act, move_timeout)
        async with LengthsAhead(gateway, first_key(key) if key else None) as ahead:
            while True:
                found = await look(
                    ahead,
                    host,
                    os.environ.get(KEY_VARIABLE),
                    rules,
                    lambda move: typer.echo(_line(move), err=as_json),
                )
                typer.echo(_look_in_json(found) if as_json else _look_in_words(found))
                await asyncio.sleep(period)

    with suppress(KeyboardInterrupt):
        _run(go_on())


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
    return best_shape(
        found, read_lengths(lengths), load_profile(profile), _integers("--allowed", allowed), floor
    )


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
        typer.echo(str(worth))
    typer.echo(f"at least {moves.lowest} of {moves.total} GPUs serve at all times")


def _line(move: Move) -> str:
    gpus = ",".join(map(str, move.gpus))
    engine = f" ({move.engine})" if move.engine else ""
    what = f"{move.kind:<5} degree {move.degree} on {move.host}, GPUs {gpus}{engine}"
    return f"  {what}; {move.serving} GPUs serve"


def _degrees(degrees: tuple[int, ...]) -> str:
    return "+".join(map(str, degrees))


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ShapeError(f"{option}: {text!r} is not a list of numbers such as 8,4,2,1,1") from None


def _look_in_words(found: Look) -> str:
    said = {"would": "it pays; --apply does it", "stays": "left as it is"}.get(found.outcome, found.outcome)
    shapes = ""
    if found.moves is not None and found.worth is not None:
        shapes = f": {_degrees(found.moves.before)} to {_degrees(found.moves.after)}, {found.worth}"
    return f"{found.why}{shapes}: {said}"


def _look_in_json(found: Look) -> str:
    worth = None if found.worth is None else asdict(found.worth) | {"pays": found.worth.pays}
    return json.dumps(asdict(found) | {"worth": worth})
