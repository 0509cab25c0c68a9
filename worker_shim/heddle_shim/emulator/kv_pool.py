"""The KV pool of one worker: tokens held by the prefix tree, tokens held by running requests, and the rest.

Invariants: tree tokens + private tokens + promised tokens + free tokens = total; a request's KV is the locked
tree prefix it started from plus private pages; only unlocked tree tokens are ever evicted. Pages are never
shared in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle_shim.emulator.radix import Node, RadixTree
from heddle_shim.emulator.tokens import ID_BYTES


@dataclass(slots=True)
class KvHold:
    """What one request holds: ``shared`` tokens in the tree, locked at ``node``, and ``private`` tokens of
    whole pages.
    """

    node: Node
    shared: int
    private: int = 0


@dataclass(slots=True)
class KvPool:
    """``total`` tokens in pages of ``page_size``; ``total`` is rounded down to whole pages."""

    total: int
    page_size: int = 1
    private: int = 0
    promised: int = 0
    """Tokens set aside for KV that arrives from another worker."""
    evicted: int = 0
    """Tokens evicted since the start."""
    tree: RadixTree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = RadixTree(self.page_size)
        self.total = self.total // self.page_size * self.page_size

    @property
    def free(self) -> int:
        return self.total - self.tree.size - self.private - self.promised

    @property
    def obtainable(self) -> int:
        """Free tokens plus those that eviction could free."""
        return self.free + self.tree.evictable

    @property
    def used(self) -> int:
        """Tokens that running requests need: private ones and locked prefixes (SGLang's num_used_tokens)."""
        return self.private + self.tree.size - self.tree.evictable

    def pages(self, tokens: int) -> int:
        """``tokens`` rounded up to whole pages, in tokens."""
        return -(-tokens // self.page_size) * self.page_size

    def open(self, tokens: bytes, *, used: bool = True) -> KvHold:
        """Locks the longest known prefix of ``tokens`` for a request, or for one who reads it and makes no
        ``used`` of it.
        """
        shared, node = self.tree.match(tokens, used=used)
        self.tree.lock(node)
        return KvHold(node, shared)

    def grow(self, hold: KvHold, length: int) -> bool:
        """Makes room for ``length`` tokens of KV in all; False, and nothing changed, without room."""
        wanted = self.pages(length) - hold.shared - hold.private
        if wanted <= 0:
            return True
        if not self.ensure_free(wanted):
            return False
        hold.private += wanted
        self.private += wanted
        return True

    def grow_each(self, holds: Sequence[KvHold], tokens: int) -> bool:
        """So many more tokens of KV for each, in pages of one token; False, and nothing changed, without
        room.
        """
        if not self.ensure_free(tokens * len(holds)):
            return False
        for hold in holds:
            hold.private += tokens
        self.private += tokens * len(holds)
        return True

    def ensure_free(self, tokens: int) -> bool:
        """Evicts until ``tokens`` are free; False, and nothing evicted, if that cannot be had."""
        if tokens > self.obtainable:
            return False
        if (lacking := tokens - self.free) > 0:
            self.evicted += self.tree.evict(lacking)
        return True

    def publish(self, hold: KvHold, tokens: bytes) -> None:
        """Puts the whole pages of a request's computed KV into the tree and keeps them locked
        (cache_unfinished_req).

        Pages that another request published meanwhile are duplicates and are freed.
        """
        node = self.tree.extend(hold.node, hold.shared, tokens)
        length = len(tokens) // ID_BYTES
        shared = length // self.page_size * self.page_size
        self.private -= hold.private
        hold.node, hold.shared = node, shared
        hold.private = self.pages(length) - shared
        self.private += hold.private

    def close(self, hold: KvHold, keep: bytes | None = None) -> None:
        """Ends a request. With ``keep`` its whole pages go into the tree first; without, private KV is
        lost.
        """
        if keep is not None:
            self.publish(hold, keep)
        self.tree.unlock(hold.node)
        self.private -= hold.private
        hold.private = 0

    def audit(self) -> list[str]:
        """Broken invariants, empty when all is well."""
        faults = self.tree.audit()
        if min(self.private, self.promised, self.free) < 0:
            faults.append(f"pool of {self.total}: {self.private} private, {self.tree.size} in the tree")
        return faults
