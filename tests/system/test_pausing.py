"""An RL framework pauses generation around new weights: steps that come meanwhile wait, and none fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

pytestmark = pytest.mark.system

MODEL = "loom-8b"
AGENTS = 8
STEPS = 3


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_steps_wait_in_a_pause_and_go_on_after_it(parts: Any, until: Any, mode: str) -> None:
    engines = [await parts.engine("--speed", "10", "--model", MODEL) for _ in "12"]
    gateway = await parts.gateway([engine.url for engine in engines])

    async def agent(number: int) -> int:
        talk: list[Any] = [{"role": "user", "content": f"Task {number}."}]
        for _ in range(STEPS):
            answer = await gateway.http.post(
                f"/t/agent-{number}/v1/chat/completions",
                json={"model": MODEL, "messages": talk, "max_tokens": 200},
            )
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] != "abort"
            talk += [choice["message"], {"role": "user", "content": "Go on."}]
        return number

    async def sent() -> float:
        return sum([(await one.metrics(gateway.http))["sglang:num_requests_total"] for one in engines])

    async def live() -> int:
        return int((await gateway.get("/stats"))["steps"]["in_flight"])

    early = [asyncio.create_task(agent(number)) for number in range(AGENTS // 2)]

    async def run() -> bool:
        return await sent() >= len(early)

    await until(run, "steps at the engines")
    paused = await gateway.http.post("/pause_generation", json={"mode": mode})
    assert paused.json()["done"] == 2
    assert (await gateway.http.get("/ready")).json()["paused"]
    before = await gateway.metric("heddle_core_dispatches_total")
    late = [asyncio.create_task(agent(number)) for number in range(AGENTS // 2, AGENTS)]

    async def wait_here() -> bool:
        return await live() == AGENTS

    await until(wait_here, "all agents' steps in the gateway")
    assert await gateway.metric("heddle_core_dispatch_paused") == 1
    # One that was sent before may reach its engine late; none is sent since.
    assert await gateway.metric("heddle_core_dispatches_total") == before >= await sent()
    assert not any(task.done() for task in early + late)
    assert (await gateway.http.post("/continue_generation", json={})).json()["done"] == 2
    assert sorted(await asyncio.gather(*early, *late)) == list(range(AGENTS))
    stats = await gateway.at_rest()
    assert stats["steps"]["ended"]["done"] == stats["steps"]["started"] == AGENTS * STEPS
    assert await sent() == AGENTS * STEPS
    assert not (await gateway.http.get("/ready")).json()["paused"]
    await gateway.is_sound()


@pytest.mark.services
async def test_a_gateway_that_is_killed_in_a_pause_sends_nothing_before_its_end(
    parts: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    engine = await parts.engine("--speed", "20", "--model", MODEL)
    config = tmp_path / "heddle.toml"
    config.write_text('namespace = "killed-in-a-pause"\n')
    options = ("--redis", redis_server.url, "--config", str(config))
    gateway = await parts.gateway([engine.url], *options)
    redis = Redis.from_url(redis_server.url, decode_responses=True)

    async def in_redis(word: str) -> None:
        async def kept() -> bool:
            return bool(await redis.hget("{heddle:killed-in-a-pause}:pause", "p") == word)

        await until(kept, f"{word} in Redis")

    (await gateway.http.post("/pause_generation", json={"mode": "in_place"})).raise_for_status()
    await in_redis("1")
    await gateway.part.kill()
    again = await parts.gateway([engine.url], *options)
    assert (await again.http.get("/ready")).json()["paused"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Task."}], "max_tokens": 4}
    asked = asyncio.create_task(again.http.post("/t/a/v1/chat/completions", json=body))

    async def waits() -> bool:
        return await again.metric("heddle_core_steps_live") == 1

    await until(waits, "the step in the gateway")
    assert await again.metric("heddle_core_dispatches_total") == 0
    (await again.http.post("/continue_generation", json={})).raise_for_status()
    assert (await asked).status_code == 200
    # The end of a pause is remembered as well.
    await in_redis("0")
    await redis.aclose()
    await again.part.kill()
    last = await parts.gateway([engine.url], *options)
    assert not (await last.http.get("/ready")).json()["paused"]
