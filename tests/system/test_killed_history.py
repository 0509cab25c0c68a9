"""kill -9 of a gateway in a burst of ending steps: each that a client has is in the history, once."""

import asyncio
from pathlib import Path

import aiosqlite
import asyncpg
import httpx
import pytest

from tests.system.conftest import Gateway, Parts

pytestmark = [pytest.mark.system, pytest.mark.services]

MODEL = "loom-8b"
CLIENTS = 16
ENDED = 120


async def rows_of(location: str) -> list[tuple[str, int]]:
    query = "select trajectory_id, step from steps where outcome = 'done'"
    if location.startswith("postgresql"):
        connection = await asyncpg.connect(location)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()
    async with aiosqlite.connect(location) as database, database.execute(query) as cursor:
        return [(name, step) async for name, step in cursor]


async def burst(gateway: Gateway, ended: list[tuple[str, int]], http: httpx.AsyncClient, number: int) -> None:
    """Steps of one client after the other, until the gateway is gone."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Task."}], "max_tokens": 1}
    while True:
        path = f"{gateway.url}/t/life-{gateway.url[-5:]}-{number}-{len(ended)}/v1/chat/completions"
        try:
            answer = await http.post(path, json=body)
        except httpx.TransportError:
            return
        assert answer.status_code == 200, answer.text
        ended.append((answer.headers["x-heddle-trajectory-id"], int(answer.headers["x-heddle-step"])))


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_every_step_that_ended_before_kill_9_is_in_the_history_once(
    parts: Parts, tmp_path: Path, request: pytest.FixtureRequest, dialect: str
) -> None:
    location = str(tmp_path / "kept.db")
    if dialect == "postgresql":
        location = request.getfixturevalue("postgresql").new_database()
    engine = await parts.engine("--speed", "200", "--model", MODEL, "--slots", "64")
    ended: list[tuple[str, int]] = []
    for _ in range(2):
        gateway = await parts.gateway([engine.url], "--database", location)
        before = len(ended)
        async with httpx.AsyncClient(trust_env=False, timeout=60.0) as http:
            clients = [asyncio.create_task(burst(gateway, ended, http, one)) for one in range(CLIENTS)]
            while len(ended) < before + ENDED:  # noqa: ASYNC110  a count, not an event
                await asyncio.sleep(0.001)
            await gateway.part.kill()
            await asyncio.gather(*clients)
    last = await parts.gateway([engine.url], "--database", location)
    await last.at_rest()
    found = await rows_of(location)
    assert len(set(found)) == len(found), "written twice"
    assert set(ended) <= set(found), f"{len(set(ended) - set(found))} of {len(ended)} ended steps are lost"
