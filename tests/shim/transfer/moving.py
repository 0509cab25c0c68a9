"""What tests of migrations between two shims begin and wait for."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from heddle_contracts.kv import MigrationStatus

from .conftest import PATIENCE_S
from .stored_engine import Shim


def content(layout_bytes: int) -> Callable[[str, int], bytes]:
    """Bytes of a part, another for each page and part."""
    return lambda name, part: hashlib.shake_128(f"{name}.{part}".encode()).digest(layout_bytes)


def filled(shim: Shim, names: Sequence[str]) -> None:
    shim.engine.fill(names, content(shim.engine.own.layout.rank_page_bytes))


async def ask(
    client: httpx.AsyncClient, source: Shim, target: Shim | str, names: Sequence[str], **more: Any
) -> str:
    """Starts a migration; returns its URL."""
    url = target if isinstance(target, str) else target.url
    body = {"id": "m-1", "trajectory": "t", "target": url, "deadline_s": PATIENCE_S, **more}
    answer = await client.post(f"{source.url}/shim/v1/migrations", json={"page_hashes": list(names), **body})
    assert answer.status_code == 202, answer.text
    return f"{source.url}/shim/v1/migrations/{body['id']}"


async def ended(client: httpx.AsyncClient, url: str) -> MigrationStatus:
    answer = await client.get(url, params={"wait": PATIENCE_S})
    status = MigrationStatus.model_validate_json(answer.content)
    assert status.state.final
    return status
