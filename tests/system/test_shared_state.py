"""kill -9 of a gateway with its live state in Redis: the next goes on with every trajectory at its home."""

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.services]

MODEL = "loom-8b"
WORKERS = 4
AGENTS = 12
_namespaces = count()


@pytest.fixture
def namespace(tmp_path: Path) -> Sequence[str]:
    """Options of a gateway whose state nobody else shares."""
    config = tmp_path / "heddle.toml"
    config.write_text(f'namespace = "system-{next(_namespaces)}"\n')
    return ("--config", str(config))


async def step(gateway: Any, agent: int, talk: list[Any]) -> tuple[int, str]:
    """One step: its number and its worker, as the answer says. Every other agent is tagged by nothing."""
    response = await gateway.http.post(
        f"/t/agent-{agent}/v1/chat/completions" if agent % 2 else "/v1/chat/completions",
        json={"model": MODEL, "messages": talk, "max_tokens": 4},
    )
    response.raise_for_status()
    talk += [response.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    return int(response.headers["x-heddle-step"]), response.headers["x-heddle-worker"]


async def is_written(gateway: Any) -> bool:
    """Whether Redis has all that is live."""
    state = (await gateway.http.get("/ready")).json()["live_state"]
    return state == "following" and not await gateway.metric("heddle_live_state_behind")


async def test_every_trajectory_goes_on_at_its_home(
    parts: Any, until: Any, redis_server: Any, namespace: Sequence[str]
) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL) for _ in range(WORKERS)]
    urls = [engine.url for engine in engines]
    # Each process has a history of its own: what the second one knows, it knows from Redis.
    options = ("--redis", redis_server.url, "--placement", "sticky", *namespace)
    gateway = await parts.gateway(urls, *options)
    # The untagged ones are siblings of two prompts.
    talks: list[list[Any]] = [
        [{"role": "user", "content": f"Task {agent if agent % 2 else agent % 4}."}] for agent in range(AGENTS)
    ]
    homes: list[str] = []
    for number in range(2):
        # All at once, so that they spread.
        found = await asyncio.gather(*(step(gateway, agent, talks[agent]) for agent in range(AGENTS)))
        assert [one for one, _ in found] == [number] * AGENTS
        homes = [worker for _, worker in found]
    assert len(set(homes)) == WORKERS
    await until(lambda: is_written(gateway), "the state in Redis")
    await gateway.part.kill()

    again = await parts.gateway(urls, *options)
    # The other way round and one by one: without what Redis knows, they would lie elsewhere.
    for agent in reversed(range(AGENTS)):
        assert await step(again, agent, talks[agent]) == (2, homes[agent]), f"agent {agent}"
    await again.is_sound()


async def test_a_redis_that_is_away_costs_no_step_and_is_filled_again(
    parts: Any, until: Any, own_redis: Any, namespace: Sequence[str]
) -> None:
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    gateway = await parts.gateway([engine.url], "--redis", own_redis.url, *namespace)
    talk: list[Any] = [{"role": "user", "content": "Task."}]
    assert await step(gateway, 0, talk) == (0, engine.name)
    own_redis.stop()

    async def is_local() -> bool:
        ready = (await gateway.http.get("/ready")).json()
        return (ready["ready"], ready["live_state"]) == (True, "local")

    await until(is_local, "the outage in /ready")
    assert await step(gateway, 0, talk) == (1, engine.name)
    own_redis.start()
    await until(lambda: is_written(gateway), "the state in the Redis that came back empty")
    await gateway.part.kill()
    again = await parts.gateway([engine.url], "--redis", own_redis.url, *namespace)
    assert await step(again, 0, talk) == (2, engine.name)


async def test_a_gateway_starts_without_its_redis(parts: Any, namespace: Sequence[str]) -> None:
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    gateway = await parts.gateway([engine.url], "--redis", "redis://127.0.0.1:1/0", *namespace)
    assert (await gateway.http.get("/ready")).json()["live_state"] == "local"
    assert await step(gateway, 0, [{"role": "user", "content": "Task."}]) == (0, engine.name)


async def test_a_second_gateway_of_one_namespace_follows_and_takes_over(
    parts: Any, until: Any, redis_server: Any, namespace: Sequence[str]
) -> None:
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    first = await parts.gateway([engine.url], "--redis", redis_server.url, *namespace)
    second = await parts.gateway([engine.url], "--redis", redis_server.url, *namespace)

    async def states() -> list[tuple[str, str]]:
        ready = [(await one.http.get("/ready")).json() for one in (first, second)]
        return [(one["role"], one["live_state"]) for one in ready]

    assert await states() == [("leader", "following"), ("follower", "elsewhere")]
    talk: list[Any] = [{"role": "user", "content": "Task."}]
    assert await step(second, 0, talk) == (0, engine.name)
    assert await step(first, 0, talk) == (1, engine.name)
    await first.part.stop()

    async def took_over() -> bool:
        ready = (await second.http.get("/ready")).json()
        return (ready["role"], ready["live_state"]) == ("leader", "following")

    await until(took_over, "the lease given back")
    assert await step(second, 0, talk) == (2, engine.name)


async def test_a_worker_that_was_added_by_hand_survives_kill_9(
    parts: Any, until: Any, redis_server: Any, namespace: Sequence[str]
) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL) for _ in range(2)]
    options = ("--redis", redis_server.url, *namespace)
    gateway = await parts.gateway([engines[0].url], *options)
    (await gateway.http.post("/admin/v1/workers", json={"url": engines[1].url})).raise_for_status()

    async def both(gateway: Any) -> bool:
        return bool((await gateway.http.get("/ready")).json()["workers"]["active"] == 2)

    await until(lambda: both(gateway), "the worker that was added")
    await gateway.part.kill()
    again = await parts.gateway([engines[0].url], *options)
    await until(lambda: both(again), "the worker that was added, without being added again")
    await again.is_sound()
