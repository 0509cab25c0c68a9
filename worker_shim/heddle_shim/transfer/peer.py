"""Asking other shims who they are."""

import ssl
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final

import httpx
from heddle_contracts.kv import SHIM_PROTOCOL, Handshake, MigrationFault
from pydantic import ValidationError

from heddle_shim.transfer.faults import TransferFault

AskPeer = Callable[[str], Awaitable[Handshake]]

TIMEOUT_S: Final = 5.0


@cache
def _certificates() -> ssl.SSLContext:
    """Loading them costs more than asking a peer does, and one process may have many clients."""
    return httpx.create_ssl_context()


class Peers:
    """One HTTP client for all peers. ``close`` it at the end."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def ask(self, url: str) -> Handshake:
        """Handshake of the shim at ``url``.

        Raises:
            TransferFault: TARGET_UNREACHABLE, or MISMATCH where it speaks another protocol.
        """
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=_certificates())
        try:
            answer = await self._client.get(f"{url.rstrip('/')}/shim/v1/handshake")
            answer.raise_for_status()
            said = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise TransferFault(MigrationFault.TARGET_UNREACHABLE, f"target: {url}: {error}") from error
        protocol = said.get("protocol") if isinstance(said, dict) else None
        if protocol != SHIM_PROTOCOL:
            raise TransferFault(
                MigrationFault.MISMATCH,
                f"protocol: {SHIM_PROTOCOL} here, {protocol} at {url}; use one release",
            )
        try:
            return Handshake.model_validate(said)
        except ValidationError as error:
            raise TransferFault(
                MigrationFault.MISMATCH, f"handshake of {url} cannot be read: {error}"
            ) from error

    async def close(self) -> None:
        """Closes its connections. Safe to repeat."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()
