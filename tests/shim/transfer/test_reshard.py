"""Re-sharding of pages between TP degrees and memory orders."""

import os
from itertools import pairwise

import numpy as np
import pytest
from heddle_contracts.kv import Attention, KvLayout, PageOrder
from heddle_shim.transfer.page_file import PageBytes
from heddle_shim.transfer.reshard import LayoutsDiffer, plan, reshard
from hypothesis import given, settings
from hypothesis import strategies as st

NUMPY_AXES = {
    PageOrder.LAYER_FIRST: ("k", "l", "t", "h"),
    PageOrder.PAGE_FIRST: ("k", "t", "l", "h"),
    PageOrder.PAGE_FIRST_DIRECT: ("k", "l", "t", "h"),
    PageOrder.PAGE_HEAD: ("k", "h", "t", "l"),
}


def layout_of(heads: int, tp: int, order: PageOrder, *, attention: Attention = Attention.MHA) -> KvLayout:
    return KvLayout(
        attention=attention,
        dtype="bfloat16",
        item_bytes=2,
        page_size=3,
        layers=2,
        kv_heads=heads,
        head_dim=4,
        tp_size=tp,
        order=order,
    )


def sharded(whole: np.ndarray, layout: KvLayout) -> list[bytes]:
    """Parts of a page, cut by numpy from an array (k, h, t, l, dim): SGLang's rule, written another way."""
    parts = []
    for part in range(layout.parts):
        heads = whole[:, part * layout.rank_heads : (part + 1) * layout.rank_heads]
        axes = ["khtl".index(axis) for axis in NUMPY_AXES[layout.order]]
        parts.append(np.ascontiguousarray(heads.transpose(*axes, 4)).tobytes())
    return parts


def as_bytes(parts: list[PageBytes]) -> list[bytes]:
    return [bytes(part) for part in parts]


degrees = st.sampled_from([1, 2, 4, 8, 16])
orders = st.sampled_from(list(PageOrder))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 4, 8]), degrees, degrees, orders, orders, st.integers(0, 2**32 - 1))
def test_any_degree_to_any_other_is_what_numpy_cuts_and_the_way_back_is_the_identity(
    heads: int, source_tp: int, target_tp: int, source_order: PageOrder, target_order: PageOrder, seed: int
) -> None:
    source = layout_of(heads, source_tp, source_order)
    target = layout_of(heads, target_tp, target_order)
    whole = np.random.default_rng(seed).integers(0, 2**16, (2, heads, 3, 2, 4), dtype=np.uint16)

    there = reshard(source, target, sharded(whole, source))

    assert as_bytes(there) == sharded(whole, target)
    assert as_bytes(reshard(target, source, there)) == sharded(whole, source)


@pytest.mark.parametrize("order", list(PageOrder))
@pytest.mark.parametrize("heads", [1, 2, 4, 8], ids="{} heads".format)
def test_one_to_two_to_four_to_one_is_bit_identical(heads: int, order: PageOrder) -> None:
    layouts = [layout_of(heads, tp, order) for tp in (1, 2, 4, 1)]
    recorded = os.urandom(layouts[0].rank_page_bytes)
    parts: list[PageBytes] = [recorded]
    for source, target in pairwise(layouts):
        parts = reshard(source, target, parts)
        assert len(parts) == target.parts

    assert as_bytes(parts) == [recorded]


@settings(deadline=None, max_examples=20)
@given(degrees, degrees, st.sampled_from([PageOrder.LAYER_FIRST, PageOrder.PAGE_FIRST]))
def test_the_latent_row_of_mla_is_one_part_at_every_degree(
    source_tp: int, target_tp: int, order: PageOrder
) -> None:
    source = layout_of(1, source_tp, order, attention=Attention.MLA)
    target = layout_of(1, target_tp, order, attention=Attention.MLA)
    page = os.urandom(source.rank_page_bytes)

    assert reshard(source, target, [page]) == [page]
    assert {target.part_of(rank) for rank in range(target_tp)} == {0}


def test_mla_rows_are_reordered_between_memory_orders() -> None:
    source = layout_of(1, 1, PageOrder.LAYER_FIRST, attention=Attention.MLA)
    target = layout_of(1, 2, PageOrder.PAGE_FIRST, attention=Attention.MLA)
    rows = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4)

    (moved,) = reshard(source, target, [rows.tobytes()])

    assert bytes(moved) == rows.transpose(1, 0, 2).tobytes()


def test_ranks_beyond_the_heads_hold_copies() -> None:
    layout = layout_of(2, 8, PageOrder.PAGE_FIRST)

    assert layout.parts == 2
    assert [layout.part_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert layout.page_bytes == layout_of(2, 1, PageOrder.PAGE_FIRST).page_bytes


def test_a_head_range_of_page_head_is_one_block_for_keys_and_one_for_values() -> None:
    source, target = layout_of(8, 1, PageOrder.PAGE_HEAD), layout_of(8, 4, PageOrder.PAGE_HEAD)

    assert [len(blocks) for blocks in plan(source, target)] == [2, 2, 2, 2]


def test_the_same_layout_costs_no_copy() -> None:
    layout = layout_of(4, 2, PageOrder.PAGE_FIRST)
    parts = [os.urandom(layout.rank_page_bytes) for _ in range(2)]

    assert all(made is given for made, given in zip(reshard(layout, layout, parts), parts, strict=True))


@pytest.mark.parametrize(
    ("field", "value"), [("page_size", 4), ("layers", 3), ("kv_heads", 8), ("head_dim", 8), ("dtype", "fp8")]
)
def test_layouts_of_other_kv_are_refused_by_name(field: str, value: object) -> None:
    source = layout_of(4, 1, PageOrder.PAGE_FIRST)
    other = KvLayout(**{**source.model_dump(), field: value})

    with pytest.raises(LayoutsDiffer, match=field):
        reshard(source, other, [bytes(source.rank_page_bytes)])


def test_parts_of_another_size_are_refused() -> None:
    layout = layout_of(4, 2, PageOrder.PAGE_FIRST)

    with pytest.raises(ValueError, match="parts"):
        reshard(layout, layout, [bytes(layout.rank_page_bytes)])
    with pytest.raises(ValueError, match="tp_size"):
        layout_of(6, 4, PageOrder.PAGE_FIRST)
