"""The prefix tree over token ids: which prefixes have their KV in the pool, after SGLang's RadixCache.

Invariants (``audit`` checks them): a node's key is a whole number of pages; siblings differ in their first
page; a locked node's ancestors are locked; ``size`` is the tokens of all nodes, ``evictable`` those of
unlocked ones. A locked node is never evicted. Eviction takes whole leaves, least recently used first
(SGLang ``evict``).
"""

import heapq
from itertools import count
from typing import Final

from heddle_shim.emulator.tokens import ID_BYTES


class Node:
    """An edge of the tree: ``key`` continues the parent's prefix. ``locks`` counts running requests below
    or at it.
    """

    __slots__ = ("children", "in_heap", "key", "last_used", "locks", "parent")

    def __init__(self, key: bytes, parent: "Node | None") -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.in_heap = False


class RadixTree:
    """Prefixes in pages of ``page_size`` tokens. Counts are in tokens, sequences are ``bytes`` of ids
    (``tokens``).
    """

    def __init__(self, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page size must be at least 1, not {page_size}")
        self.page_size: Final = page_size
        self._page_bytes: Final = page_size * ID_BYTES
        self._tick = 0
        self._heap_order = count()
        self.reset()

    def reset(self) -> None:
        """Forgets everything. Nodes handed out before are dead."""
        self.root = Node(b"", None)
        self.root.locks = 1
        self.size = 0
        self.evictable = 0
        self._heap: list[tuple[int, int, Node]] = []

    def match(self, tokens: bytes, *, used: bool = True) -> tuple[int, Node]:
        """Longest known prefix in whole pages: (its tokens, its last node). Marks it as ``used`` now."""
        node, end = self._walk(tokens, self.root, 0, used=used)
        return end // ID_BYTES, node

    def insert(self, tokens: bytes) -> tuple[int, Node]:
        """Adds the whole pages of ``tokens``; returns (tokens that were known before, last node)."""
        node, end = self._walk(tokens, self.root, 0)
        return end // ID_BYTES, self._add(tokens, node, end)

    def extend(self, locked: Node, known: int, tokens: bytes) -> Node:
        """Adds ``tokens``, whose first ``known`` ones end at a node that is locked for this sequence; the
        lock moves to the last node, which is returned.

        The same as ``insert``, ``lock`` of the new node and ``unlock`` of the old one, without the way down
        from the root: a trajectory's history is a chain of many nodes.
        """
        above = locked
        node, end = self._walk(tokens, locked, known * ID_BYTES)
        while above is not self.root:
            above.last_used = self._tick
            above = _parent(above)
        node = last = self._add(tokens, node, end)
        while node is not locked:
            if node.locks == 0:
                self.evictable -= len(node.key) // ID_BYTES
            node.locks += 1
            node = _parent(node)
        return last

    def lock(self, node: Node) -> None:
        """Protects the prefix that ends at ``node`` from eviction."""
        while node is not self.root:
            if node.locks == 0:
                self.evictable -= len(node.key) // ID_BYTES
            node.locks += 1
            node = _parent(node)

    def unlock(self, node: Node) -> None:
        """Takes one ``lock`` back."""
        while node is not self.root:
            if node.locks <= 0:
                raise AssertionError("unlock of a prefix that is not locked")
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key) // ID_BYTES
                self._offer(node)
            node = _parent(node)

    def evict(self, wanted: int) -> int:
        """Frees at least ``wanted`` tokens if that many are evictable; returns how many it freed."""
        freed = 0
        while freed < wanted and self._heap:
            used, _, node = heapq.heappop(self._heap)
            node.in_heap = False
            if node.parent is None or node.children or node.locks:
                continue  # Evicted, grown or locked since; it is offered again when it becomes a free leaf.
            if used != node.last_used:
                self._offer(node)
                continue
            parent, tokens = self._cut_off(node)
            freed += tokens
            self._offer(parent)
        return freed

    def audit(self) -> list[str]:
        """Broken invariants, empty when all is well."""
        faults: list[str] = []
        size = evictable = 0
        stack = [self.root]
        while stack:
            node = stack.pop()
            for first, child in node.children.items():
                stack.append(child)
                tokens = len(child.key) // ID_BYTES
                size += tokens
                evictable += 0 if child.locks else tokens
                if (
                    not child.key
                    or len(child.key) % self._page_bytes
                    or child.key[: self._page_bytes] != first
                ):
                    faults.append("key is not whole pages, or stored under another page")
                if child.parent is not node:
                    faults.append("child points to another parent")
                if child.locks < 0 or (child.locks and node is not self.root and node.locks < child.locks):
                    faults.append("child is locked more often than its parent")
                if not child.children and not child.locks and not child.in_heap:
                    faults.append("free leaf is not up for eviction")
        if (size, evictable) != (self.size, self.evictable):
            faults.append(f"counted {size}/{evictable} tokens, kept {self.size}/{self.evictable}")
        return faults

    def _walk(self, tokens: bytes, node: Node, at: int, *, used: bool = True) -> tuple[Node, int]:
        """Follows ``tokens`` from their byte ``at``, where ``node`` ends, as far as it is known, splitting
        the last edge if it is known in part.
        """
        self._tick += used
        page = self._page_bytes
        usable = len(tokens) // page * page
        while at < usable:
            child = node.children.get(tokens[at : at + page])
            if child is None:
                break
            if tokens.startswith(child.key, at):
                at += len(child.key)
                node = child
                if used:
                    node.last_used = self._tick
                continue
            shared = self._shared_bytes(child.key, tokens, at)
            node = self._split(child, shared)
            if used:
                node.last_used = self._tick
            at += shared
            break
        return node, at

    def _add(self, tokens: bytes, node: Node, end: int) -> Node:
        """A leaf below ``node`` for the whole pages from byte ``end`` on; ``node`` itself where there are
        none.
        """
        usable = len(tokens) // self._page_bytes * self._page_bytes
        if end >= usable:
            return node
        leaf = Node(tokens[end:usable], node)
        leaf.last_used = self._tick
        node.children[leaf.key[: self._page_bytes]] = leaf
        added = (usable - end) // ID_BYTES
        self.size += added
        self.evictable += added
        self._offer(leaf)
        return leaf

    def _shared_bytes(self, key: bytes, tokens: bytes, at: int) -> int:
        """Length of the common start of ``key`` and ``tokens[at:]`` in whole pages; at least one page is
        known equal.
        """
        page = self._page_bytes
        low, high = 1, min(len(key), len(tokens) - at) // page
        while low < high:
            middle = (low + high + 1) // 2
            if key[low * page : middle * page] == tokens[at + low * page : at + middle * page]:
                low = middle
            else:
                high = middle - 1
        return low * page

    def _split(self, child: Node, at: int) -> Node:
        """Puts a node for the first ``at`` bytes above ``child``, whose identity (and locks) stay with the
        end.
        """
        page = self._page_bytes
        parent = _parent(child)
        upper = Node(child.key[:at], parent)
        upper.locks = child.locks
        upper.last_used = child.last_used
        parent.children[upper.key[:page]] = upper
        child.key = child.key[at:]
        child.parent = upper
        upper.children[child.key[:page]] = child
        return upper

    def _cut_off(self, node: Node) -> tuple[Node, int]:
        """Takes a free leaf out of the tree; returns (its parent, its tokens)."""
        parent = _parent(node)
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        tokens = len(node.key) // ID_BYTES
        self.size -= tokens
        self.evictable -= tokens
        return parent, tokens

    def _offer(self, node: Node) -> None:
        if node is self.root or node.children or node.locks or node.in_heap:
            return
        node.in_heap = True
        heapq.heappush(self._heap, (node.last_used, next(self._heap_order), node))


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise AssertionError("node was evicted while in use")
    return node.parent
