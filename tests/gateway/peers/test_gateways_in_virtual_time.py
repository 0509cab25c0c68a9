"""Gateways of one namespace, cut links and a Redis that is away. In simulated time: a seed is a run."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from heddle_gateway.peers.reign import Role

from tests.simulate.virtual_time import run_in_virtual_time

from .virtual_gateways import Agent, Node, World

AGENTS = 10
SEEDS = range(8)


def simulated(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run_in_virtual_time(main())


class Rollout:
    """``async with``: agents take steps until it is left."""

    def __init__(self, world: World, agents: list[Agent] | None = None) -> None:
        self.agents = agents or [Agent(number, world.nodes, world.chance) for number in range(AGENTS)]
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Rollout":
        self._tasks = [asyncio.create_task(self._run(agent)) for agent in self.agents]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        async with asyncio.timeout(60.0):
            await asyncio.gather(*self._tasks)

    async def _run(self, agent: Agent) -> None:
        while not self._over.is_set():
            await agent.step()

    def begin(self, agent: Agent) -> None:
        """One more."""
        self.agents.append(agent)
        self._tasks.append(asyncio.create_task(self._run(agent)))

    def stop(self) -> None:
        """Each agent ends with the step it is in."""
        self._over.set()

    @property
    def least(self) -> int:
        return min(len(agent.seen) for agent in self.agents)

    def is_exact(self, world: World) -> None:
        """Each agent is one trajectory, its steps are numbered 0, 1, ..., and each ended at one gateway."""
        for agent in self.agents:
            assert [step for _, step in agent.seen] == list(range(len(agent.seen))), agent.seen
            assert len({name for name, _ in agent.seen}) == 1, agent.seen
        assert len({agent.seen[0][0] for agent in self.agents}) == len(self.agents)
        ended = Counter(one for node in world.nodes for one in node.ended)
        assert ended == Counter(one for agent in self.agents for one in agent.seen)


async def watch(world: World, over: asyncio.Event) -> None:
    """Never are two certain that they decide."""
    while not over.is_set():
        certain = [node.name for node in world.nodes if node.decides]
        assert len(certain) <= 1, certain
        await asyncio.sleep(0.005)


async def at_rest(world: World, *, all_lived: bool = True) -> None:
    """One leads, the others follow on the straight way, and nothing is held for anybody. ``all_lived``: no
    gateway was away from leader and Redis, which looks like its death: engines are told to stop its steps.
    """

    def settled() -> bool:
        roles = Counter(node.role for node in world.nodes)
        by_detour = any(node.reign.stats()["by_way_of_redis"] for node in world.nodes)
        return roles == {Role.LEADER: 1, Role.FOLLOWER: world.size - 1} and not by_detour

    await world.until(settled, "one leader, and links to it")
    leader = world.leader
    await world.until(lambda: leader.driver.live_steps == 0, "every step to have ended")
    assert leader.hosting.stats() == {"followers": world.size - 1, "hosted_steps": 0}
    for node in world.nodes:
        assert node.driver.audit() == []
        assert not (all_lived and node.aborted), "a step was taken from a gateway that lives"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_that_is_cut_off_goes_on_by_way_of_redis(seed: int) -> None:
    async def main() -> list[list[tuple[str, int]]]:
        over = asyncio.Event()
        async with World(seed) as world, Rollout(world) as rollout:
            watching = asyncio.create_task(watch(world, over))
            for _ in range(3):
                victim = world.chance.choice(world.followers)
                world.cut(victim)
                await world.until(lambda v=victim: v.reign.stats()["by_way_of_redis"], "the way by Redis")
                assert victim.role is Role.FOLLOWER
                before = len(victim.ended)
                await world.until(lambda v=victim, n=before: len(v.ended) > n + 3, "steps meanwhile")
                world.heal()
                await world.until(lambda v=victim: not v.reign.stats()["by_way_of_redis"], "the straight way")
                await asyncio.sleep(world.chance.uniform(0.0, 1.0))
            over.set()
            await watching
            await rollout.__aexit__()
            rollout.is_exact(world)
            await at_rest(world)
            return [agent.seen for agent in rollout.agents if agent.number % 2]

    assert simulated(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_becomes_of_links_and_redis_no_step_is_numbered_twice(seed: int) -> None:
    """Links of one gateway are cut, or Redis is away for some or for all; not both at once."""

    async def main() -> None:
        over = asyncio.Event()
        async with World(seed) as world, Rollout(world) as rollout:
            watching = asyncio.create_task(watch(world, over))
            chance = world.chance
            for _ in range(8):
                if chance.random() < 0.5:
                    world.cut(chance.choice(world.nodes))
                else:
                    away = chance.sample(world.nodes, chance.randint(1, world.size))
                    world.store.away.update(node.name for node in away)
                await asyncio.sleep(chance.uniform(0.05, 6.0))
                world.heal()
                world.store.away.clear()
                await asyncio.sleep(chance.choice([0.0, 0.5, 6.0]))
            before = rollout.least
            await world.until(lambda: rollout.least > before, "every agent to go on")
            over.set()
            await watching
            await rollout.__aexit__()
            rollout.is_exact(world)
            await at_rest(world)

    simulated(main)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_one_that_decided_alone_tells_what_ended_there_when_they_meet_again(seed: int) -> None:
    """Each agent stays at its gateway, as those behind the same cut do."""

    async def main() -> None:
        async with World(seed) as world:
            chance = world.chance
            agents = [Agent(number, [world.nodes[number % world.size]], chance) for number in range(AGENTS)]
            for _ in range(2):
                async with Rollout(world, agents) as rollout:
                    await more_steps(world, rollout, "together")
                    victim = chance.choice(world.nodes)
                    led = victim.role is Role.LEADER
                    world.cut(victim)
                    world.store.away.add(victim.name)

                    def both(victim: Node = victim, led: bool = led) -> bool:
                        # A leader that Redis cannot be asked about goes on leading, whoever else does.
                        others = [one for one in world.nodes if one is not victim]
                        decides = victim.role is (Role.LEADER if led else Role.ALONE)
                        return decides and any(one.role is Role.LEADER for one in others)

                    await world.until(both, "both sides to decide")
                    assert (victim.reign.alone_because is None) == led
                    # Known at this gateway alone, and in their tool gaps when it meets the others.
                    late = [Agent(len(agents) + number, [victim], chance) for number in range(4)]
                    await asyncio.gather(more_steps(world, rollout, "apart"), *(a_few(one) for one in late))
                    assert victim.reign.stats()["untold_ends"] > 2
                    world.heal()
                    world.store.away.clear()
                    await world.until(lambda v=victim: v.role is not Role.ALONE, "them to meet")
                    for agent in late:
                        rollout.begin(agent)
                    await more_steps(world, rollout, "together")
                    rollout.stop()
                rollout.is_exact(world)
            await at_rest(world, all_lived=False)
            await world.until(
                lambda: not any(node.reign.stats()["untold_ends"] for node in world.nodes),
                "everything to be told",
            )
            assert all(node.reign.alone_because is None for node in world.nodes)

    simulated(main)


async def a_few(agent: Agent) -> None:
    for _ in range(3):
        await agent.step()


async def more_steps(world: World, rollout: Rollout, where: str) -> None:
    """Every agent takes some. Steps of a gateway of which nothing can be heard keep their seats for half a
    minute.
    """
    enough = {agent.number: len(agent.seen) + 3 for agent in rollout.agents}
    await world.until(
        lambda: all(len(agent.seen) >= enough[agent.number] for agent in rollout.agents),
        f"steps {where}",
        within_s=90.0,
    )


def test_a_seed_is_a_run() -> None:
    """The same decisions at the same moments: what fails once can be looked at again."""

    async def main() -> list[Any]:
        async with World(7) as world, Rollout(world) as rollout:
            world.cut(world.followers[0])
            await asyncio.sleep(5.0)
            world.heal()
            await rollout.__aexit__()
            named = [agent.seen for agent in rollout.agents if agent.number % 2]
            return [named, [len(node.ended) for node in world.nodes], asyncio.get_running_loop().time()]

    assert simulated(main) == simulated(main)


def test_a_policy_and_a_pause_are_in_force_at_whoever_leads_next() -> None:
    async def main() -> None:
        async with World(3) as world:
            first = world.leader
            for node in world.followers:
                assert node.driver.policy() == first.driver.policy()
            first.driver.change_policy({"order": "longest_first"})
            first.driver.pause_dispatch(True)
            await world.until(
                lambda: all(one.driver.is_paused for one in world.nodes), "the pause everywhere"
            )
            await first.reign.close()
            world.nodes.remove(first)
            await world.until(lambda: any(one.role is Role.LEADER for one in world.nodes), "another leader")
            second = world.leader
            assert second.driver.policy()["order"] == "longest_first"
            assert second.driver.is_paused
            late = await world.add("late")
            await world.until(lambda: late.driver.is_paused, "the pause at one that came later")
            assert late.driver.policy()["order"] == "longest_first"
            second.driver.change_policy({"order": "fcfs"})
            await world.until(lambda: late.driver.policy()["order"] == "fcfs", "a change that came later")
            first.driver.close()

    simulated(main)


async def held_by_one_that_is_away(world: World) -> tuple[Node, Node]:
    """The leader, and a follower that has a step which never ends, and is cut off from all but its client."""
    leader, victim = world.leader, world.followers[0]
    agent = Agent(1, [victim], world.chance)
    agent.most_s = 1e6
    world.endless = asyncio.create_task(agent.step())
    await world.until(lambda: leader.hosting.stats()["hosted_steps"] == 1, "the step at the leader")
    return leader, victim


def test_the_steps_of_a_gateway_that_lives_are_not_taken_from_it() -> None:
    async def main() -> None:
        async with World(5, size=2) as world:
            leader, victim = await held_by_one_that_is_away(world)
            # Redis answers it, and its mail is lost: it lives, and cannot be spoken to.
            world.store.office.loss = 1.0
            world.cut(victim)
            await world.until(lambda: leader.hosting.stats()["followers"] == 0, "it to be away")
            await asyncio.sleep(60.0)
            assert leader.aborted == []
            assert leader.driver.live_steps == 1
            # It dies.
            world.store.away.add(victim.name)
            await world.until(lambda: leader.aborted == ["rid-1-0"], "its step to be ended", within_s=12.0)
            assert leader.driver.live_steps == 0
            world.endless.cancel()

    simulated(main)


def test_while_redis_is_away_nobody_is_taken_for_dead_for_half_a_minute() -> None:
    async def main() -> None:
        async with World(5, size=2) as world:
            leader, victim = await held_by_one_that_is_away(world)
            world.store.away.update(node.name for node in world.nodes)
            world.cut(victim)
            await world.until(lambda: leader.hosting.stats()["followers"] == 0, "it to be away")
            await asyncio.sleep(25.0)
            assert leader.aborted == []
            await world.until(lambda: leader.aborted == ["rid-1-0"], "its step to be ended", within_s=12.0)
            world.endless.cancel()

    simulated(main)
