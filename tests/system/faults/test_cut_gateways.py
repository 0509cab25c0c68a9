"""The link between two gateways is cut, Redis is well: no step is numbered twice, and no client notices."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Parts, free_port, wait_until
from tests.system.test_gateways_as_one import MODEL, Group, is_exact, started

from .relay import Relay

pytestmark = pytest.mark.faults

AGENTS = 24
NAMES = ("127.0.0.2", "127.0.0.3")
"""Under which each gateway is reached by the other: addresses of this host, each with a relay."""


@dataclass
class Pair:
    """Two gateways that reach each other through relays, and clients, workers and Redis without."""

    group: Group
    relays: Sequence[Relay]
    engines: Sequence[Any]

    def cut(self) -> None:
        for relay in self.relays:
            relay.cut()

    def heal(self) -> None:
        for relay in self.relays:
            relay.heal()

    async def by_way_of_redis(self) -> bool:
        return await self.group.gateways[1].metric("heddle_peers_by_way_of_redis") == 1

    async def direct(self) -> bool:
        return not await self.by_way_of_redis() and await self.group.roles() == ["leader", "follower"]


async def pair_of(parts: Parts, redis: Any, folder: Path, stack: AsyncExitStack, speed: str) -> Pair:
    engines = [await parts.engine("--speed", speed, "--model", MODEL, "--slots", "8") for _ in "12"]
    config = folder / "heddle.toml"
    config.write_text(f'namespace = "cut-{folder.name}"\n')
    options = ("--redis", redis.url, "--config", str(config), "--database", str(folder / "one.db"))
    relays, gateways = [], []
    for name in NAMES:
        port = free_port()
        relays.append(await stack.enter_async_context(Relay(port, host=name, port=port)))
        environment = {"HEDDLE_PEER_HOST": name, "HEDDLE_PEER_PORT": str(port)}
        gateways.append(await parts.gateway([one.url for one in engines], *options, environment=environment))
    pair = Pair(Group(gateways, options), relays, engines)
    assert await pair.group.roles() == ["leader", "follower"]
    return pair


async def test_a_follower_that_is_cut_off_from_its_leader_asks_by_way_of_redis(
    parts: Parts, redis_server: Any, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        pair = await pair_of(parts, redis_server, tmp_path, stack, "20")
        agents = pair.group.agents(AGENTS)
        over = asyncio.Event()

        async def rollout(agent: Any) -> int:
            steps = 0
            while not over.is_set():
                await agent.run_on(1)
                steps += 1
            return steps

        def least() -> int:
            return min(len(agent.seen) for agent in agents)

        async def has(steps: int) -> None:
            async def done() -> bool:
                return least() >= steps

            await wait_until(done, f"{steps} steps of each agent")

        running = asyncio.gather(*(rollout(agent) for agent in agents))
        await has(2)
        pair.cut()
        await wait_until(pair.by_way_of_redis, "the follower to ask by way of Redis")
        await has(least() + 4)
        pair.heal()
        await wait_until(pair.direct, "the follower to be back on the straight way")
        await has(least() + 2)
        over.set()
        steps = await running
        for agent, count in zip(agents, steps, strict=True):
            is_exact([agent], count)
        assert len({agent.seen[0][0] for agent in agents}) == AGENTS
        assert [agent.broken_streams for agent in agents if agent.broken_streams] == []
        assert sum(agent.repeated for agent in agents) == 0, "no client noticed"
        assert await started(pair.engines, pair.group.gateways[0].http) == sum(steps), "a step ran twice"
        served = [await gateway.metric("heddle_steps_total") for gateway in pair.group.gateways]
        assert all(served), "agents asked both"

        async def written() -> bool:
            return await pair.group.has_written(sum(steps))

        await wait_until(written, "every step in the history, once")
        for gateway in pair.group.gateways:
            assert "decides for itself" not in gateway.part.log.read_text()
        await pair.group.gateways[0].is_sound()
