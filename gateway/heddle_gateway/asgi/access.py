"""Who may call what.

Routes fall into three classes: open (liveness), agents' (the data path), operators' (everything else: deny by
default, so a route that nobody thought of is an operator's). Without any configured key the gateway is open,
which is for one machine; with agent keys but no admin key the operators' routes are closed.

Invariants: decided on the path after identity prefixes were taken off; keys are compared by digest; OPTIONS
passes, since a preflight carries no key.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
AGENT_PATHS: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/generate",
        "/inference/v1/generate",
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/render",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/models",
        "/finish_session",
    }
)
AGENT_PREFIXES: Final = ("/v1/models/", "/v1/responses/")


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request may not pass. ``status``: 401 (no such key) or 403 (no key can open this)."""

    status: int
    message: str
    code: str


UNKNOWN_KEY: Final = Denial(401, "The API key is missing or not known here.", "invalid_api_key")
NEEDS_ADMIN: Final = Denial(401, "This route needs an admin key.", "invalid_api_key")
CLOSED: Final = Denial(
    403, "Operators' routes are closed: no admin key is configured (HEDDLE_ADMIN_KEYS).", "admin_key_missing"
)


def is_agents_path(path: str) -> bool:
    """Whether agents may call this path."""
    return path in AGENT_PATHS or path.startswith(AGENT_PREFIXES)


class AccessRule:
    """Checks callers' keys where keys are configured; costs nothing where none are."""

    def __init__(self, *, agent_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._admin = frozenset(_digest(key) for key in admin_keys)
        self._agents = frozenset(_digest(key) for key in agent_keys)
        self.applies = bool(self._admin or self._agents)

    def denial(self, method: str, path: str, headers: Mapping[str, str]) -> Denial | None:
        """None lets the request pass. ``headers``: lower-case names."""
        if method == "OPTIONS" or path in OPEN_PATHS:
            return None
        digests = {_digest(key) for key in keys_of(headers)}
        if is_agents_path(path):
            known = not self._agents or digests & self._agents or digests & self._admin
            return None if known else UNKNOWN_KEY
        if not self._admin:
            return CLOSED
        return None if digests & self._admin else NEEDS_ADMIN


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """Every key a caller sent: an agent may name its trajectory by one and identify itself by another."""
    found = [headers[name] for name in ("x-api-key", "x-goog-api-key") if name in headers]
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.append(key.strip())
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
