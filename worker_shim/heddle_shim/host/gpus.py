"""Which GPUs an engine gets: pure. A block of neighbours, aligned to its size where that is a power of two:
links between neighbours are used, and what is left stays usable for large degrees.
"""

from collections.abc import Collection, Iterable
from itertools import takewhile


class NoRoom(Exception):
    """The GPUs asked for are not free. The message names them."""


def named(total: int, visible: str | None) -> tuple[str, ...]:
    """What CUDA calls GPUs 0..total-1 of a host: ``visible`` is the CUDA_VISIBLE_DEVICES that the host itself
    was given, numbers or UUIDs; None where it was given none. Raises NoRoom where it names fewer.
    """
    if visible is None:
        return tuple(map(str, range(total)))
    names = [name.strip() for name in visible.split(",")]
    # CUDA sees what stands before the first name that is none, such as -1 or nothing.
    known = list(takewhile(lambda name: name and not name.startswith("-"), names))
    if len(known) < total:
        raise NoRoom(f"gpus: {total} are offered, but CUDA_VISIBLE_DEVICES={visible!r} names {len(known)}")
    return tuple(known[:total])


def pick(total: int, taken: Collection[int], degree: int) -> tuple[int, ...]:
    """``degree`` free GPUs of 0..total-1: the aligned block in the fullest neighbourhood, else any
    neighbours. Raises NoRoom.
    """
    if degree > total:
        raise NoRoom(f"degree: {degree} GPUs are wanted, this host has {total}")
    stride = degree if degree & (degree - 1) == 0 else 1
    blocks = [*_blocks(total, degree, stride), *_blocks(total, degree, 1)]
    free = [block for block in blocks if not set(block) & set(taken)]
    if not free:
        left = total - len(set(taken))
        raise NoRoom(f"degree: no {degree} neighbouring GPUs are free ({left} of {total} are)")
    # Where larger blocks are broken already: they keep the whole ones whole.
    return min(free, key=lambda block: (not _is_aligned(block, stride), *_emptiness(block, total, taken)))


def check(total: int, taken: Collection[int], gpus: Iterable[int]) -> tuple[int, ...]:
    """The GPUs in order. Raises NoRoom for one that is not there, taken, or named twice."""
    wanted = sorted(gpus)
    if len(set(wanted)) < len(wanted):
        raise NoRoom(f"gpus: {wanted} names one twice")
    if wanted and wanted[-1] >= total:
        raise NoRoom(f"gpus: this host has 0 to {total - 1}, not {wanted[-1]}")
    if busy := sorted(set(wanted) & set(taken)):
        raise NoRoom(f"gpus: {', '.join(map(str, busy))} are in use; stop their engines first")
    return tuple(wanted)


def _blocks(total: int, degree: int, stride: int) -> list[tuple[int, ...]]:
    return [tuple(range(first, first + degree)) for first in range(0, total - degree + 1, stride)]


def _is_aligned(block: tuple[int, ...], stride: int) -> bool:
    return block[0] % stride == 0


def _emptiness(block: tuple[int, ...], total: int, taken: Collection[int]) -> tuple[int, ...]:
    """Free GPUs of the enclosing blocks of twice the size, four times, ...; then the number of the first."""
    sizes = []
    size = 2 * len(block)
    while size < 2 * total:
        first = block[0] // size * size
        sizes.append(sum(gpu not in taken for gpu in range(first, min(total, first + size))))
        size *= 2
    return (*sizes, block[0])
