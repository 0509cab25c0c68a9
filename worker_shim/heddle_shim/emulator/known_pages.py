"""Which pages of an offer a prefix tree has: the tree knows tokens, an offer names pages by hash."""

import hashlib
from collections.abc import Sequence

from heddle_shim.emulator.radix import Node, RadixTree
from heddle_shim.emulator.tokens import ID_BYTES


def known_pages(tree: RadixTree, hashes: Sequence[str], page_size: int) -> bytes:
    """Tokens of the longest known prefix whose pages have these hashes, in whole pages of ``page_size``."""
    step = page_size * ID_BYTES
    best = b""
    # A node whose whole pages all match: (node, tokens up to its end, their pages, the digest of the last).
    ways: list[tuple[Node, bytes, int, bytes]] = [(tree.root, b"", 0, b"")]
    while ways:
        node, before, pages_before, digest_before = ways.pop()
        for child in node.children.values():
            tokens, pages, digest = before + child.key, pages_before, digest_before
            while pages < len(hashes) and (pages + 1) * step <= len(tokens):
                following = hashlib.sha256(digest + tokens[pages * step : (pages + 1) * step]).digest()
                if following.hex() != hashes[pages]:
                    break
                pages, digest = pages + 1, following
            else:
                if pages < len(hashes):
                    ways.append((child, tokens, pages, digest))
            if pages * step > len(best):
                best = tokens[: pages * step]
    return best
