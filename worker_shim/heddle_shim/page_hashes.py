"""SGLang's names of KV pages, computed from token ids.

A page's hash is SHA-256 over the digest of the page before it and the page's token ids as 32-bit
little-endian integers, so it names the whole prefix that ends with the page. The first page follows the
namespace's seed, where ``extra_key`` or ``cache_salt`` of the request make one.
Source: SGLang 0.5.23, ``mem_cache/utils.py`` (``get_storage_hash_str``, ``storage_namespace_seed``) and
``mem_cache/cpp_utils/hash_binding.cpp``.
"""

import hashlib
from array import array
from collections.abc import Sequence


def namespace_seed(extra_key: str | None, cache_salt: str | None) -> bytes:
    """Digest that the first page's hash starts from; empty where a request names neither."""
    if extra_key is None and cache_salt is None:
        return b""
    digest = hashlib.sha256(b"sglang-cache-namespace-v1")
    for part in (extra_key, cache_salt):
        if part is None:
            digest.update(b"\x00")
        else:
            encoded = part.encode()
            digest.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def page_hashes(
    tokens: Sequence[int], page_size: int, extra_key: str | None = None, cache_salt: str | None = None
) -> list[str]:
    """Hashes of the full pages of a prefix, 64 hex digits each; what is left over has no page.

    Raises:
        ValueError: a token id does not fit 32 bits.
    """
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens: ids are whole numbers from 0 to 4294967295 ({error})") from error
    words = memoryview(ids).cast("B")
    step = page_size * ids.itemsize
    digest = namespace_seed(extra_key, cache_salt)
    hashes = []
    for start in range(0, len(words) - step + 1, step):
        digest = hashlib.sha256(digest + words[start : start + step]).digest()
        hashes.append(digest.hex())
    return hashes


def event_hash(page_hash: str) -> int:
    """How KV events name a page: the first 8 bytes of its hash as a signed integer."""
    return int.from_bytes(bytes.fromhex(page_hash[:16]), "big", signed=True)
