"""Three gateways of one namespace: one decides, and agents that ask any of them notice nothing."""

import asyncio
import random
import signal
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
OUTAGE_S = 10.0
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
    talk: list[Any] = field(default_factory=list)

    async def run(self, steps: int) -> None:
        self.talk = [{"role": "user", "content": f"Task {self.number // 4}."}]
        await self.run_on(steps)

    async def run_on(self, steps: int) -> None:
        """So many steps more."""
        self.talk = self.talk or [{"role": "user", "content": f"Task {self.number // 4}."}]
        for _ in range(steps):
            self.talk += [await self.answer(self.talk), {"role": "user", "content": "Go on."}]

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
        moves = await self.gateways[0].ended_moves()
        return moves is not None and sum(written) == steps + moves

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


async def test_a_killed_leader_is_followed(parts: Any, until: Any, redis_server: Any, tmp_path: Path) -> None:
    """kill -9 in mid-rollout: streams of the others go on, who asked the dead one asks another, and what an
    operator has set stays in force.
    """
    engines = [await parts.engine("--speed", "2", "--model", MODEL, "--slots", "6") for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 3)
    leader, *others = group.gateways
    assert await group.roles() == ["leader", "follower", "follower"]
    (await others[0].http.put("/admin/v1/policy", json={"order": "fcfs"})).raise_for_status()
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

    async def followed() -> bool:
        return "leader" in await Group(others, ()).roles()

    await until(followed, "a new leader")
    print(f"taken over after {time.monotonic() - killed_at:.2f} s")
    heir = others[(await Group(others, ()).roles()).index("leader")]
    assert (await heir.get("/policy"))["order"] == "fcfs"

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


async def test_a_killed_follower_costs_only_its_own_connections(
    parts: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    engines = [await parts.engine("--speed", "2", "--model", MODEL, "--slots", "6") for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 3)
    leader, victim, other = group.gateways
    agents = group.agents(18, tokens=80)
    rollout = asyncio.gather(*(agent.run(4) for agent in agents))

    async def is_busy() -> bool:
        asked = [agent for agent in agents if agent.serves == victim.url]
        return len(asked) >= 3 and min(len(agent.seen) for agent in agents) >= 1

    await until(is_busy, "steps at the follower")
    await victim.part.kill()
    for agent in agents:
        agent.gateways = (leader, other)
    await rollout
    is_exact(agents, 4)
    assert [url for agent in agents for url in agent.broken_streams if url != victim.url] == []

    async def is_forgotten() -> bool:
        steps = (await other.get("/stats"))["steps"]
        return steps["in_flight"] == 0

    await until(is_forgotten, "the steps of the dead follower ended")
    steps = (await leader.get("/stats"))["steps"]
    repeated = sum(agent.repeated for agent in agents)
    assert repeated
    # What the dead one had is ended as aborted, once; the repeat of it is a step of its own.
    assert steps["ended"]["done"] >= 18 * 4
    assert steps["ended"]["done"] + steps["ended"]["aborted"] == steps["started"] <= 18 * 4 + repeated
    assert await leader.metric("heddle_peers_hosted_steps") == 0
    await leader.is_sound()


async def test_a_leader_that_hangs_is_followed_and_comes_back_as_a_follower(
    parts: Any, until: Any, redis_server: Any, tmp_path: Path
) -> None:
    """SIGSTOP: it wakes up, knows nothing of the time that passed, and must not decide."""
    engines = [await parts.engine("--speed", "2", "--model", MODEL, "--slots", "6") for _ in "12"]
    group = await group_of(parts, engines, redis_server, tmp_path, 2)
    old, new = group.gateways
    agents = group.agents(16, tokens=100)
    rollout = asyncio.gather(*(agent.run(4) for agent in agents))

    async def is_busy() -> bool:
        asked = {agent.serves for agent in agents}
        return {old.url, new.url} <= asked and min(len(agent.seen) for agent in agents) >= 1

    await until(is_busy, "steps at both")
    old.part.process.send_signal(signal.SIGSTOP)
    try:

        async def leads() -> bool:
            return bool((await new.http.get("/ready")).json()["role"] == "leader")

        await until(leads, "the other to lead")
    finally:
        old.part.process.send_signal(signal.SIGCONT)

    async def follows() -> bool:
        return await group.roles() == ["follower", "leader"]

    await until(follows, "the one that hung to follow")
    await rollout
    is_exact(agents, 4)
    assert [agent.broken_streams for agent in agents if agent.broken_streams] == []
    assert sum(agent.repeated for agent in agents) == 0, "no client noticed"
    assert await started(engines, new.http) == 16 * 4, "a step ran twice"
    for gateway in group.gateways:
        await gateway.is_sound()


async def test_redis_may_go_and_come_back_empty(
    parts: Any, until: Any, own_redis: Any, tmp_path: Path
) -> None:
    engines = [await parts.engine("--speed", "50", "--model", MODEL, "--slots", "4") for _ in "12"]
    group = await group_of(parts, engines, own_redis, tmp_path, 2)
    agents = group.agents(12)

    async def rollout() -> None:
        await asyncio.gather(*(agent.run_on(2) for agent in agents))

    await rollout()
    own_redis.stop()

    async def is_local() -> bool:
        leader, follower = await group.ready()
        return (leader["role"], leader["live_state"], follower["role"]) == ("leader", "local", "follower")

    await until(is_local, "the outage in /ready")
    outage_began = time.monotonic()
    while time.monotonic() - outage_began < OUTAGE_S:
        await rollout()
    assert await group.roles() == ["leader", "follower"], "who leads goes on"
    own_redis.start()

    async def is_written() -> bool:
        leader, follower = await group.ready()
        behind = await group.gateways[0].metric("heddle_live_state_behind")
        return (leader["live_state"], follower["role"], behind) == ("following", "follower", 0)

    await until(is_written, "the state in the Redis that came back empty")
    await group.gateways[0].part.kill()
    for agent in agents:
        agent.gateways = group.gateways[1:]
    await rollout()
    for agent in agents:
        is_exact([agent], len(agent.seen))
    assert len({agent.seen[0][0] for agent in agents}) == len(agents)
