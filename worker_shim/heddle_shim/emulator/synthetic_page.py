"""What the emulated engine sends for a page of KV: few bytes that are checked as if they were all.

A page's bytes follow from its hash and its tokens alone: the first head's keys are the token ids, all else is
a key stream of the hash. So the receiver gets the tokens it needs for its prefix tree, and a byte that is
wrong, missing or put under the wrong head is found.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from heddle_contracts.kv import KvLayout, PageOrder

from heddle_shim.emulator.tokens import ID_BYTES
from heddle_shim.transfer.page_file import PageBytes
from heddle_shim.transfer.reshard import reshard

KV_HEADS: Final = 8
MOVED_PAGE_TOKENS: Final = 64
"""SGLang's usual page; with the pool's own page of one token a move would be all headers."""


def page_tokens(pool_page: int, wanted: int = MOVED_PAGE_TOKENS) -> int:
    """Tokens of a page that is moved: whole pages of the pool, at least ``wanted``."""
    return -(-wanted // pool_page) * pool_page


def layout_of(pool_page: int, degree: int, wanted: int = MOVED_PAGE_TOKENS) -> KvLayout:
    """Layout of an emulated engine's pages.

    Raises:
        ValueError: the heads cannot be split over this MP degree.
    """
    return KvLayout(
        dtype="emulated",
        item_bytes=ID_BYTES,
        page_size=page_tokens(pool_page, wanted),
        layers=1,
        kv_heads=KV_HEADS,
        head_dim=1,
        tp_size=degree,
        order=PageOrder.PAGE_HEAD,
    )


@lru_cache(maxsize=32)
def _whole(layout: KvLayout) -> KvLayout:
    """The layout with all heads in one part."""
    return layout.model_copy(update={"tp_size": 1})


def make_page(layout: KvLayout, page_hash: str, tokens: bytes) -> list[PageBytes]:
    """Parts of a page."""
    return reshard(_whole(layout), layout, [_content(layout, page_hash, tokens)])


def tokens_of_page(layout: KvLayout, page_hash: str, parts: Sequence[PageBytes]) -> bytes | None:
    """The tokens of a page; None where its bytes are not those of this hash."""
    (content,) = reshard(layout, _whole(layout), parts)
    tokens = bytes(content[: layout.page_size * ID_BYTES])
    return tokens if bytes(content) == _content(layout, page_hash, tokens) else None


def _content(layout: KvLayout, page_hash: str, tokens: bytes) -> bytes:
    rest = _whole(layout).rank_page_bytes - len(tokens)
    return tokens + hashlib.shake_128(bytes.fromhex(page_hash) + tokens).digest(rest)
