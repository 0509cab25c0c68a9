"""Pages of one TP degree and memory order turned into those of another. Pure functions over bytes.

The unit is a row: ``head_dim`` elements of one (keys or values, head, token, layer), or the latent row of one
(token, layer) for MLA. Rows never change, they only move; so every move is exact and undone by the move
back. Source: SGLang 0.5.23 splits KV heads evenly and in order over the TP ranks; with more ranks than heads
each head is on ``tp / heads`` ranks in a row, which hold copies.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from heddle_contracts.kv import Attention, KvLayout, PageOrder

from heddle_shim.transfer.page_file import PageBytes

# Axes of a part, slowest first: k keys and values, h head, t token, l layer.
AXES: Final[dict[PageOrder, str]] = {
    PageOrder.LAYER_FIRST: "klth",
    PageOrder.PAGE_FIRST: "ktlh",
    PageOrder.PAGE_FIRST_DIRECT: "klth",
    PageOrder.PAGE_HEAD: "khtl",
}


class LayoutsDiffer(ValueError):
    """Two layouts between which no re-sharding exists; the message names the field."""


class Block(NamedTuple):
    """Bytes ``start`` to ``end`` of a source part."""

    part: int
    start: int
    end: int


def reshard(source: KvLayout, target: KvLayout, parts: Sequence[PageBytes]) -> list[PageBytes]:
    """The parts of one page in the target's layout, from those in the source's.

    Raises:
        LayoutsDiffer: the layouts do not describe the same KV.
        ValueError: the parts are not those of a page of ``source``.
    """
    if len(parts) != source.parts or any(memoryview(one).nbytes != source.rank_page_bytes for one in parts):
        raise ValueError(
            f"parts: a page of this layout has {source.parts} of {source.rank_page_bytes} bytes, got"
            f" {[memoryview(one).nbytes for one in parts]}"
        )
    views = [memoryview(one).cast("B") for one in parts]
    made: list[PageBytes] = []
    for blocks in plan(source, target):
        if len(blocks) == 1:
            part, start, end = blocks[0]
            whole = start == 0 and end == len(views[part])
            made.append(parts[part] if whole else views[part][start:end])
        else:
            made.append(b"".join([views[part][start:end] for part, start, end in blocks]))
    return made


@lru_cache(maxsize=32)
def plan(source: KvLayout, target: KvLayout) -> tuple[tuple[Block, ...], ...]:
    """For each target part the source's blocks that make it up, in order, neighbours joined.

    Raises:
        LayoutsDiffer: the layouts do not describe the same KV.
    """
    if (fault := source.mismatch(target)) is not None:
        raise LayoutsDiffer(fault)
    return tuple(tuple(_joined(_rows(source, target, part))) for part in range(target.parts))


def _rows(source: KvLayout, target: KvLayout, part: int) -> Iterator[Block]:
    """Where each row of a target part lies in the source."""
    row = source.head_dim * source.item_bytes
    strides = _strides(source)
    first_head = part * target.rank_heads
    sizes = _sizes(target)
    axes = AXES[target.order]
    for place in product(*(range(sizes[axis]) for axis in axes)):
        at = dict(zip(axes, place, strict=True))
        source_part, at["h"] = divmod(first_head + at["h"], source.rank_heads)
        start = sum(strides[axis] * index for axis, index in at.items()) * row
        yield Block(source_part, start, start + row)


def _joined(rows: Iterator[Block]) -> Iterator[Block]:
    last = next(rows)
    for block in rows:
        if block.part == last.part and block.start == last.end:
            last = Block(last.part, last.start, block.end)
        else:
            yield last
            last = block
    yield last


def _sizes(layout: KvLayout) -> dict[str, int]:
    """Length of each axis of a part; MLA is one head and has no keys apart from values."""
    latent = layout.attention is Attention.MLA
    return {"k": 1 if latent else 2, "h": layout.rank_heads, "t": layout.page_size, "l": layout.layers}


def _strides(layout: KvLayout) -> dict[str, int]:
    """Rows from one index of an axis to the next."""
    sizes, strides, rows = _sizes(layout), {}, 1
    for axis in reversed(AXES[layout.order]):
        strides[axis] = rows
        rows *= sizes[axis]
    return strides
