"""Three gateways of one namespace: one decides, and agents that ask any of them notice nothing."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.system, pytest.mark.services]

MODEL = "loom-8b"
_namespaces = count()


@dataclass
class Agent:
    """Sends its history step by step, each step to a gateway drawn by chance; one that is away is left out,
    and the step repeated at another. Odd ones are tagged, every third streams.
    """

    number: int
    gateways: Sequence[Any]
    chance: random.Random
    tokens: int = 8
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Trajectory and step of each whole answer."""
    repeated: int = 0
    broken_streams: list[str] = field(default_factory=list)
    """The gateways whose streams broke."""
    serves: str | None = None
    """URL of the gateway that it waits for."""
    streaming: bool = False

    async def run(self, steps: int) -> None:
        talk: list[Any] = [{"role": "user", "content": f"Task {self.number // 4}."}]
        for _ in range(steps):
            talk += [await self.answer(talk), {"role": "user", "content": "Go on."}]

    @property
    def streams(self) -> bool:
        return self.number % 3 == 0

    async def answer(self, talk: list[Any]) -> Any:
        path = f"/t/agent-{self.number}/v1/chat/completions" if self.number % 2 else "/v1/chat/completions"
        body = {"model": MODEL, "messages": talk, "max_tokens": self.tokens, "stream": self.streams}
        for attempt in count():
            gateway = self.chance.choice(self.gateways)
            self.serves = gateway.url
            # As the SDKs mark their repeats.
            headers = {"x-stainless-retry-count": str(attempt)}
            try:
                async with gateway.http.stream("POST", path, json=body, headers=headers) as response:
                    answer = await self._read(response)
            except httpx.TransportError:
                if self.streaming:
                    self.broken_streams.append(gateway.url)
                self.repeated += 1
                await asyncio.sleep(0.01)
                continue
            finally:
                self.serves, self.streaming = None, False
            self.seen.append(
                (response.headers["x-heddle-trajectory-id"], int(response.headers["x-heddle-step"]))
            )
            return answer
        raise AssertionError("unreachable")

    async def _read(self, response: httpx.Response) -> Any:
        if response.status_code != 200:
            await response.aread()
            pytest.fail(f"{response.status_code}: {response.text}")
        if not self.streams:
            await response.aread()
            return response.json()["choices"][0]["message"]
        content, done = "", False
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                self.streaming = True
                for choice in httpx.Response(200, content=line[6:]).json()["choices"]:
                    content += choice["delta"].get("content") or ""
            done |= line == "data: [DONE]"
        assert done, "a stream ended without its end"
        return {"role": "assistant", "content": content}


@dataclass
class Group:
    """Gateways of one namespace, with one history."""

    gateways: list[Any]
    options: tuple[str, ...]

    async def ready(self) -> list[Any]:
        return [(await one.http.get("/ready")).json() for one in self.gateways]

    async def roles(self) -> list[str]:
        return [one["role"] for one in await self.ready()]

    async def has_written(self, steps: int) -> bool:
        written = [await one.metric("heddle_history_written_total") for one in self.gateways]
        return sum(written) == steps

    def agents(self, number: int, **how: Any) -> list[Agent]:
        return [Agent(one, self.gateways, random.Random(one), **how) for one in range(number)]


async def group_of(
    parts: Any, engines: Sequence[Any], redis: Any, folder: Path, number: int, *more: str
) -> Group:
    config = folder / "heddle.toml"
    config.write_text(f'namespace = "as-one-{next(_namespaces)}"\n')
    options = ("--redis", redis.url, "--config", str(config), "--database", str(folder / "one.db"), *more)
    urls = [engine.url for engine in engines]
    return Group([await parts.gateway(urls, *options) for _ in range(number)], options)


async def started(engines: Sequence[Any], http: httpx.AsyncClient) -> float:
    """Requests that the workers say they have finished."""
    return sum([(await engine.metrics(http))["sglang:num_requests_total"] for engine in engines])


def is_exact(agents: Sequence[Agent], steps: int) -> None:
    """Each agent is one trajectory with exactly its steps, and no two are the same."""
    for agent in agents:
        assert [step for _, step in agent.seen] == list(range(steps)), f"agent {agent.number}: {agent.seen}"
        assert len({name for name, _ in agent.seen}) == 1, f"agent {agent.number}: {agent.seen}"
    assert len({agent.seen[0][0] for agent in agents}) == len(agents)


async def test_agents_ask_any_gateway_and_one_decides(
    parts: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL, "--slots", "4") for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 3)
    assert sorted(await group.roles()) == ["follower", "follower", "leader"]
    agents = group.agents(24)
    await asyncio.gather(*(agent.run(4) for agent in agents))
    is_exact(agents, 4)

    # Whichever is asked, the leader answers for all.
    for gateway in group.gateways:
        steps = (await gateway.get("/stats"))["steps"]
        assert (steps["started"], steps["ended"]["done"], steps["in_flight"]) == (96, 96, 0)
        await gateway.is_sound()
    assert await started(engines, group.gateways[0].http) == 96, "a step ran twice"
    await until(lambda: group.has_written(96), "every step in the history, once")
    served = [await gateway.metric("heddle_steps_total") for gateway in group.gateways]
    assert sum(served) == 96
    assert all(served), served


async def test_a_killed_leader_is_followed_within_three_seconds(
    parts: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    """kill -9 in mid-rollout: streams of the others go on, and who asked the dead one asks another."""
    engines = [await parts.engine("--speed", "2", "--model", MODEL, "--slots", "6") for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 3)
    leader, *others = group.gateways
    assert await group.roles() == ["leader", "follower", "follower"]
    agents = group.agents(24, tokens=120)
    rollout = asyncio.gather(*(agent.run(5) for agent in agents))

    async def streams_everywhere() -> bool:
        serving = {agent.serves for agent in agents if agent.streaming}
        waiting = [agent for agent in agents if agent.serves == leader.url and not agent.streams]
        done = min(len(agent.seen) for agent in agents)
        return {one.url for one in others} <= serving and bool(waiting) and done >= 1

    await until(streams_everywhere, "streams at the followers, and steps at the leader")
    killed_at = time.monotonic()
    await leader.part.kill()
    for agent in agents:
        agent.gateways = others
    heir = None
    while heir is None:
        roles = await Group(others, ()).roles()
        heir = others[roles.index("leader")] if "leader" in roles else None
    took_s = time.monotonic() - killed_at
    print(f"taken over after {took_s:.2f} s")
    assert took_s < 3.0

    await rollout
    is_exact(agents, 5)
    assert [url for agent in agents for url in agent.broken_streams if url != leader.url] == []
    repeated = sum(agent.repeated for agent in agents)
    assert repeated, "nobody was at the dead gateway"

    async def at_rest() -> bool:
        return (await heir.get("/stats"))["steps"]["in_flight"] == 0

    await until(at_rest, "the new leader at rest")
    for gateway in others:
        await gateway.is_sound()
    steps = (await heir.get("/stats"))["steps"]
    assert steps["ended"]["done"] == steps["started"], steps
    # Only what the dead gateway had under way ran once more.
    assert 24 * 5 <= await started(engines, heir.http) <= 24 * 5 + repeated
