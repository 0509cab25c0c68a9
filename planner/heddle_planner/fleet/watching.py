"""Looks again and again whether other MP degrees would pay, and brings them about where it may.

Invariants: what is done was judged on the hosts as they are now; one re-shaping at a time: none is begun
while any engine starts or drains, whoever asked for that; without ``act`` nothing is done; a gateway or a
host that is away, or a move that fails, ends one look and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heddle_contracts.fleet import EngineState, HostStatus
from heddle_contracts.worker_profile import WorkerProfile

from heddle_planner.fleet.hosts import HostError, Hosts, MoveFailed
from heddle_planner.fleet.lengths_ahead import GatewayError, LengthsAhead
from heddle_planner.fleet.shape import Move, Reshaping, ShapeError
from heddle_planner.fleet.worth import Worth, best_shape

Outcome = Literal["nothing", "busy", "stays", "would", "done", "failed"]
"""Of a look. ``nothing``: no lengths to go by. ``busy``: engines start or drain. ``stays``: as it is, it is
best, or the change does not pay. ``would``: it pays, and only looking was asked for.
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a re-shaping has to keep to. ``floor``: as in `shape.reshape`."""

    profile: WorkerProfile
    allowed: tuple[int, ...]
    floor: float
    act: bool
    move_timeout_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """What a look found and what became of it."""

    outcome: Outcome
    why: str
    moves: Reshaping | None = None
    worth: Worth | None = None


async def look(
    ahead: LengthsAhead,
    host_urls: Sequence[str],
    host_key: str | None,
    rules: Rules,
    on_move: Callable[[Move], None],
) -> Look:
    """One look, and one re-shaping where it pays and ``rules.act``. Returns when that is over."""
    moves: Reshaping | None = None
    worth: Worth | None = None
    try:
        async with Hosts(host_urls, host_key) as hosts:
            found = await hosts.status()
            if (changing := _changing(found)) is not None:
                return Look("busy", f"{changing}: another re-shaping is under way")
            lengths = await ahead.look()
            if lengths is None:
                return Look("nothing", "nothing runs, and no rollout has ended since")
            moves, worth = best_shape(found, lengths.lengths, rules.profile, rules.allowed, rules.floor)
            if worth is None:
                return Look("stays", "no engine serves yet; start them with heddle fleet apply", moves)
            if not moves.moves or not worth.pays:
                return Look("stays", lengths.why, moves, worth)
            if not rules.act:
                return Look("would", lengths.why, moves, worth)
            await hosts.carry_out(moves, on_move, rules.move_timeout_s)
            return Look("done", lengths.why, moves, worth)
    except (GatewayError, HostError, MoveFailed, ShapeError, ValueError) as error:
        return Look("failed", str(error), moves, worth)


def _changing(hosts: Mapping[str, HostStatus]) -> str | None:
    for host in hosts.values():
        for engine in host.engines:
            if engine.state in (EngineState.STARTING, EngineState.DRAINING):
                return f"engine {engine.id} on {host.name} is {engine.state.value}"
    return None
