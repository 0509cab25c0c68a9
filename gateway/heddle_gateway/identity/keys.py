"""API keys: whom a request is from, and keys that are themselves a trajectory's name.

A key is the only thing that some agents let you set besides the base_url. ``sk-heddle-{id}`` is ours,
``sk-sess-{id}`` is AReaL's. Any other key is a caller's secret: it is hashed into the tenant and never
kept.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

OWN_PREFIX: Final = "sk-heddle-"
SESSION_PREFIX: Final = "sk-sess-"


def key_of(headers: Mapping[str, str]) -> str | None:
    """The caller's key, from whichever header its SDK uses (OpenAI, Anthropic, Google)."""
    authorization = headers.get("authorization")
    if authorization is not None and authorization[:7].lower() == "bearer ":
        return authorization[7:].strip() or None
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or None


def named_trajectory(key: str) -> tuple[str, str] | None:
    """(rule, id as written) if ``key`` names a trajectory."""
    if key.startswith(OWN_PREFIX):
        return "key", key[len(OWN_PREFIX) :]
    if key.startswith(SESSION_PREFIX):
        return "key-session", key
    return None


def tenant_of(headers: Mapping[str, str]) -> str:
    """16 hex digits of a hash of the caller's key; empty without one.

    Keys that name a trajectory do not tell callers apart: all of them are of the empty tenant, or the
    samples of one prompt would never meet in one group.
    """
    key = key_of(headers)
    if key is None or named_trajectory(key) is not None:
        return ""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
