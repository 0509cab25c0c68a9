"""From the degrees that are wanted to moves on hosts: pure.

A move ends engines or starts one. Moves are ordered so that few GPUs are out of service at any time: what has
to go for one new engine goes, that engine starts, then the next. An engine that is as wanted stays untouched.
Engines never span hosts, and take neighbouring GPUs, aligned where the degree is a power of two.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heddle_contracts.fleet import EngineState, HostStatus


class ShapeError(ValueError):
    """What is wanted cannot be; the message names the option and why."""


@dataclass(frozen=True, slots=True)
class Move:
    """One move. ``gpus``: of the engine that is started or stopped. ``serving``: GPUs of all hosts whose
    engines serve once it has begun.
    """

    kind: Literal["stop", "start"]
    host: str
    gpus: tuple[int, ...]
    engine: str | None
    serving: int

    @property
    def degree(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Moves in order. ``lowest``: the fewest GPUs that serve at any time, of ``total``."""

    moves: tuple[Move, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    total: int
    lowest: int

    @property
    def starts(self) -> int:
        return sum(move.kind == "start" for move in self.moves)


Block = tuple[str, tuple[int, ...]]


def reshape(hosts: Mapping[str, HostStatus], wanted: Sequence[int], floor: float) -> Reshaping:
    """The moves from what runs to engines of the ``wanted`` degrees. Hosts by the name they are shown under.

    ``floor``: share of the GPUs serving now that must serve at all times, 0 to 1. Raises ShapeError.
    """
    total = sum(host.gpus for host in hosts.values())
    if not 0 <= floor <= 1:
        raise ShapeError(f"--floor: {floor} is not between 0 and 1")
    if not wanted or min(wanted) < 1:
        raise ShapeError("--degrees: give degrees of at least 1, such as 8,4,2,1,1")
    if sum(wanted) > total:
        raise ShapeError(f"--degrees: {sum(wanted)} GPUs are wanted, the hosts have {total}")
    running = _running(hosts)
    kept, missing = _kept(running, Counter(wanted))
    placed = _place(hosts, kept, missing)
    moves, lowest = _ordered(running, kept, placed)
    need = floor * sum(len(gpus) for _, gpus in running)
    if lowest < need:
        raise ShapeError(
            f"--floor: at one time only {lowest} GPUs would serve, {need:g} are to; "
            f"a floor of {lowest / max(1, sum(len(gpus) for _, gpus in running)):.2f} would do"
        )
    before = tuple(sorted((len(gpus) for _, gpus in running), reverse=True))
    return Reshaping(moves, before, tuple(sorted(wanted, reverse=True)), total, lowest)


def _running(hosts: Mapping[str, HostStatus]) -> dict[Block, str]:
    """Engines that hold GPUs, by where they are. Raises ShapeError while one is on its way."""
    found: dict[Block, str] = {}
    for name, host in sorted(hosts.items()):
        for engine in host.engines:
            match engine.state:
                case EngineState.READY:
                    found[name, engine.gpus] = engine.id
                case EngineState.FAILED if engine.url is None:
                    pass  # never came up: holds nothing
                case EngineState.FAILED:
                    raise ShapeError(
                        f"{name}: engine {engine.id} would not drain: {engine.detail}; "
                        f"heddle fleet stop {engine.id} asks again, with --force it does not wait for steps"
                    )
                case _:
                    raise ShapeError(f"{name}: engine {engine.id} is {engine.state}: wait for it")
    return found


def _kept(running: Mapping[Block, str], wanted: Counter[int]) -> tuple[set[Block], list[int]]:
    """Which engines stay, and the degrees that are missing, largest first.

    Of more engines of one degree than are wanted, those stay whose neighbourhood keeps more engines: what
    goes leaves GPUs side by side.
    """
    kept: set[Block] = set()
    missing: list[int] = []
    for degree, number in sorted(wanted.items(), reverse=True):
        of_it = [block for block in running if len(block[1]) == degree]
        # From the end: the large new ones are placed from the front.
        of_it.sort(key=lambda block: (block[0], block[1][0]), reverse=True)
        kept.update(of_it[:number])
        missing += [degree] * (number - len(of_it[:number]))
    return kept, missing


def _place(hosts: Mapping[str, HostStatus], kept: set[Block], missing: Sequence[int]) -> list[Block]:
    """GPUs for each missing degree, largest first; kept engines are given up only where nothing else fits.

    Raises ShapeError where the GPUs are enough, but not side by side on one host.
    """
    while True:
        taken = {(host, gpu) for host, gpus in kept for gpu in gpus}
        placed: list[Block] = []
        for degree in sorted(missing, reverse=True):
            block = _first_free(hosts, taken, degree)
            if block is None:
                break
            placed.append(block)
            taken |= {(block[0], gpu) for gpu in block[1]}
        else:
            return placed
        if not kept:
            largest = max(host.gpus for host in hosts.values())
            raise ShapeError(
                f"--degrees: {', '.join(map(str, sorted(missing, reverse=True)))} do not fit on these hosts: "
                f"an engine takes neighbouring GPUs of one host, and the largest has {largest}"
            )
        # The smallest kept engine makes room and is placed anew.
        smallest = min(kept, key=lambda block: (len(block[1]), block))
        kept.remove(smallest)
        missing = [*missing, len(smallest[1])]


def _first_free(hosts: Mapping[str, HostStatus], taken: set[tuple[str, int]], degree: int) -> Block | None:
    """The fullest host that has such a block free, so that whole hosts stay whole."""
    found: list[tuple[int, str, int]] = []
    stride = degree if degree & (degree - 1) == 0 else 1
    for name, host in hosts.items():
        free = sum((name, gpu) not in taken for gpu in range(host.gpus))
        for first in range(0, host.gpus - degree + 1, stride):
            if all((name, gpu) not in taken for gpu in range(first, first + degree)):
                found.append((free, name, first))
                break
    if not found:
        return None
    _, name, first = min(found)
    return name, tuple(range(first, first + degree))


def _ordered(
    running: Mapping[Block, str], kept: set[Block], placed: Sequence[Block]
) -> tuple[tuple[Move, ...], int]:
    """Ends what stands in the way of a new engine right before that starts; the rest goes last. Also: the
    fewest GPUs that serve at any time.
    """
    left = {block: engine for block, engine in running.items() if block not in kept}
    serving = sum(len(gpus) for _, gpus in running)
    lowest = serving
    moves: list[Move] = []

    def stop(block: Block) -> None:
        nonlocal serving, lowest
        serving -= len(block[1])
        lowest = min(lowest, serving)
        moves.append(Move("stop", block[0], block[1], left.pop(block), serving))

    def in_the_way(new: Block) -> list[Block]:
        return [block for block in left if block[0] == new[0] and set(block[1]) & set(new[1])]

    waiting = list(placed)
    while waiting:
        # What costs the fewest serving GPUs comes first: it brings capacity for the next.
        new = min(waiting, key=lambda one: (sum(len(gpus) for _, gpus in in_the_way(one)), -len(one[1]), one))
        waiting.remove(new)
        for block in sorted(in_the_way(new)):
            stop(block)
        moves.append(Move("start", new[0], new[1], None, serving))
        serving += len(new[1])
    for block in sorted(left):
        stop(block)
    return tuple(moves), lowest
