"""The prefix tree against a model that keeps every known prefix in a set."""

from dataclasses import dataclass

import pytest
from heddle_shim.emulator.radix import Node, RadixTree
from heddle_shim.emulator.tokens import pack
from hypothesis import given, settings
from hypothesis import strategies as st

SEQUENCE = st.lists(st.integers(0, 2), max_size=12)


@dataclass
class Insert:
    tokens: list[int]


@dataclass
class Lock:
    tokens: list[int]


@dataclass
class Unlock:
    which: int


@dataclass
class Evict:
    wanted: int


OPERATION = st.one_of(
    st.builds(Insert, SEQUENCE),
    st.builds(Lock, SEQUENCE),
    st.builds(Unlock, st.integers(0, 5)),
    st.builds(Evict, st.integers(1, 20)),
)


def pages_of(tokens: list[int], page: int) -> list[tuple[int, ...]]:
    """Every prefix of whole pages, shortest first."""
    return [tuple(tokens[:end]) for end in range(page, len(tokens) - len(tokens) % page + 1, page)]


def known_prefix(known: set[tuple[int, ...]], tokens: list[int], page: int) -> int:
    longest = 0
    for prefix in pages_of(tokens, page):
        if prefix not in known:
            break
        longest = len(prefix)
    return longest


def all_prefixes(tree: RadixTree, page: int) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    stack: list[tuple[Node, list[int]]] = [(tree.root, [])]
    while stack:
        node, above = stack.pop()
        for child in node.children.values():
            own = above + memoryview(child.key).cast("I").tolist()
            found.update(prefix for prefix in pages_of(own, page) if len(prefix) > len(above))
            stack.append((child, own))
    return found


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3), st.lists(OPERATION, max_size=40))
def test_the_tree_knows_exactly_the_prefixes_that_were_inserted_and_not_evicted(
    page: int, operations: list[Insert | Lock | Unlock | Evict]
) -> None:
    tree = RadixTree(page)
    known: set[tuple[int, ...]] = set()
    locks: list[tuple[Node, tuple[int, ...]]] = []
    for operation in operations:
        match operation:
            case Insert(tokens):
                before = known_prefix(known, tokens, page)
                known.update(pages_of(tokens, page))
                assert tree.insert(pack(tokens))[0] == before
            case Lock(tokens):
                matched, node = tree.match(pack(tokens))
                assert matched == known_prefix(known, tokens, page)
                tree.lock(node)
                locks.append((node, tuple(tokens[:matched])))
            case Unlock(which) if locks:
                node, _ = locks.pop(which % len(locks))
                tree.unlock(node)
            case Evict(wanted):
                evictable = tree.evictable
                freed = tree.evict(wanted)
                assert freed >= min(wanted, evictable)
                left = all_prefixes(tree, page)
                assert left <= known
                assert (len(known) - len(left)) * page == freed
                assert all(set(pages_of(list(prefix), page)) <= left for _, prefix in locks)
                known = left
            case _:
                pass
        assert tree.audit() == []
        assert tree.size == len(known) * page
        protected = {prefix for _, locked in locks for prefix in pages_of(list(locked), page)}
        assert tree.size - tree.evictable >= len(protected) * page


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    tree = RadixTree()
    for first in (1, 2, 3):
        tree.insert(pack([first, 10, 11]))
    tree.match(pack([1, 10, 11]))
    assert tree.evict(1) == 3
    assert tree.match(pack([2, 10, 11]))[0] == 0
    assert tree.match(pack([1, 10, 11]))[0] == 3
    assert tree.match(pack([3, 10, 11]))[0] == 3


def test_a_shared_beginning_outlives_the_branch_that_was_evicted() -> None:
    tree = RadixTree()
    tree.insert(pack([1, 2, 3, 4]))
    tree.insert(pack([1, 2, 5, 6]))
    assert tree.size == 6
    assert tree.evict(2) == 2
    assert tree.match(pack([1, 2, 3, 4]))[0] == 2
    assert tree.match(pack([1, 2, 5, 6]))[0] == 4


def test_only_whole_pages_are_kept_and_found() -> None:
    tree = RadixTree(page_size=4)
    tree.insert(pack(list(range(10))))
    assert tree.size == 8
    assert tree.match(pack([0, 1, 2, 3, 4, 5, 6]))[0] == 4


def test_unlocking_what_is_not_locked_is_a_fault() -> None:
    tree = RadixTree()
    _, node = tree.insert(pack([1]))
    with pytest.raises(AssertionError, match="not locked"):
        tree.unlock(node)
