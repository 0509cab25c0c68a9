"""Asking another shim who it is."""

from collections.abc import Awaitable, Callable

import httpx
from heddle_contracts.kv import SHIM_PROTOCOL, Handshake, MigrationFault
from pydantic import ValidationError

from heddle_shim.transfer.faults import TransferFault

AskPeer = Callable[[str], Awaitable[Handshake]]

TIMEOUT_S = 5.0


async def ask_peer(url: str) -> Handshake:
    """Handshake of the shim at ``url``.

    Raises:
        TransferFault: TARGET_UNREACHABLE, or MISMATCH where it speaks another protocol.
    """
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            answer = await client.get(f"{url.rstrip('/')}/shim/v1/handshake")
            answer.raise_for_status()
            said = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TransferFault(MigrationFault.TARGET_UNREACHABLE, f"target: {url}: {error}") from error
    protocol = said.get("protocol") if isinstance(said, dict) else None
    if protocol != SHIM_PROTOCOL:
        raise TransferFault(
            MigrationFault.MISMATCH, f"protocol: {SHIM_PROTOCOL} here, {protocol} at {url}; use one release"
        )
    try:
        return Handshake.model_validate(said)
    except ValidationError as error:
        raise TransferFault(MigrationFault.MISMATCH, f"handshake of {url} cannot be read: {error}") from error
