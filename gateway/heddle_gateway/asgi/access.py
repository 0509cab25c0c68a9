"""Who may call what.

Routes fall into three classes: open (liveness), agents' (the data path), operator's (everything else: deny by
default, so a route that nobody thought of is the operator's). Without any configured key the gateway is open, which
is for one machine; with agent keys but no admin key the operator's routes are closed.

Invariants: decided on ``scope["path"]``, after identity prefixes were taken off; keys are compared by digest;
OPTIONS passes, since a preflight carries no key.
"""

import hashlib
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from heddle_gateway.asgi.interrupts import Receive
from heddle_gateway.asgi.layer import App, Send, refuse

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
AGENT_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/generate", "/v1/models", "/finish_session"}
)
AGENT_PREFIXES: Final = ("/v1/models/",)
# Callers' keys seen lately; a miss costs one SHA-256.
MAX_REMEMBERED: Final = 8192


class AccessLayer:
    """Checks the caller's key where keys are configured; costs nothing where none are."""

    def __init__(self, app: App, *, agent_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._app = app
        self._admin = frozenset(_digest(key.encode()) for key in admin_keys)
        self._agents = frozenset(_digest(key.encode()) for key in agent_keys)
        self._digests: dict[bytes, str] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (self._agents or self._admin) and scope["method"] != "OPTIONS":
            digests = [self._remembered(key) for key in keys_of(scope["headers"])]
            problem = self._problem(scope["path"], digests)
            if problem is not None:
                status, message = problem
                kind = "authentication_error" if status == 401 else "permission_error"
                code = "invalid_api_key" if status == 401 else "admin_key_missing"
                await refuse(
                    send, status, message, code, kind=kind, headers=[(b"www-authenticate", b"Bearer")]
                )
                return
        await self._app(scope, receive, send)

    def _problem(self, path: str, digests: list[str]) -> tuple[int, str] | None:
        if path in OPEN_PATHS:
            return None
        if path in AGENT_PATHS or path.startswith(AGENT_PREFIXES):
            known = not self._agents or any(one in self._agents or one in self._admin for one in digests)
            return None if known else (401, "The API key is missing or not known here.")
        if not self._admin:
            return (403, "Operator routes are closed: no admin key is configured (HEDDLE_ADMIN_KEYS).")
        known = any(digest in self._admin for digest in digests)
        return None if known else (401, "This route needs an admin key.")

    def _remembered(self, key: bytes) -> str:
        digest = self._digests.get(key)
        if digest is None:
            if len(self._digests) >= MAX_REMEMBERED:
                self._digests.clear()
            digest = self._digests[key] = _digest(key)
        return digest


def keys_of(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys a caller sent, Authorization first."""
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                found.insert(0, key.strip())
        elif name in (b"x-api-key", b"x-goog-api-key") and value:
            found.append(value)
    return found


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
