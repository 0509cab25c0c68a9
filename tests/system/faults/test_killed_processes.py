"""kill -9 of each process under a rollout: every trajectory ends, no step is lost, none runs twice."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.system.conftest import wait_until

from .accounts import counts_agree, journal_replays
from .cluster import Cluster

pytestmark = pytest.mark.faults

NewCluster = Callable[..., Cluster]


async def test_a_killed_planner_costs_nothing_and_speaks_again(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    await cluster.start()
    async with cluster.rollout() as rollout:
        await rollout.all_have(2)
        await cluster.planner.kill()

        async def away() -> bool:
            return (await cluster.ready())["planner"] == "away"

        await wait_until(away, "the planner's death in /ready")
        assert (await cluster.ready())["ready"]
        await rollout.all_have(rollout.least + 2)
        before = await cluster.gateway.metric("heddle_planner_forecasts_applied_total")
        await cluster.start_planner()

        async def speaks() -> bool:
            applied = await cluster.gateway.metric("heddle_planner_forecasts_applied_total")
            return (await cluster.ready())["planner"] == "ready" and applied > before

        await wait_until(speaks, "forecasts of the new planner")
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await journal_replays(cluster)


async def test_a_killed_worker_costs_no_step(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    await cluster.start()
    victim = cluster.engines[0]
    async with cluster.rollout() as rollout:
        await rollout.all_have(2)

        async def busy() -> bool:
            # So few agents may all have their homes on one engine.
            nonlocal victim
            for victim in cluster.engines:
                if (await victim.load(cluster.gateway.http))["num_running_reqs"]:
                    return True
            return False

        await wait_until(busy, "steps on a worker")
        await victim.kill()
        await rollout.all_have(rollout.least + 2)
        await victim.start()
        await cluster.gateway.serves(victim, generation=2)
    await counts_agree(cluster, rollout, died=[victim])
    await journal_replays(cluster)


@pytest.mark.parametrize("end", ["source", "target"])
async def test_a_worker_that_dies_in_the_middle_of_a_move_costs_no_step(
    new_cluster: NewCluster, end: str
) -> None:
    cluster = new_cluster(options=("--placement", "sticky"))
    await cluster.start(relayed=True)
    async with cluster.rollout() as rollout:
        led = rollout.another("led", "ab " * 400)
        source = cluster.engine_of((await led.step()).worker)
        target = cluster.other_than(source)
        number = await cluster.move_half(led.name, source, target, 600.0)
        victim = source if end == "source" else target
        await victim.kill()
        assert (await cluster.ended(led.name, number))["state"] == "failed"
        cluster.shim_of(target).pages.heal()
        answer = await led.step()
        assert answer.step == 1
        assert (answer.worker == source.name) == (end == "target")
        await victim.start()
        await cluster.gateway.serves(victim, generation=2)
    await counts_agree(cluster, rollout, died=[victim])
    await journal_replays(cluster)


async def test_a_killed_shim_costs_nothing_and_takes_its_worker_up_again(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    await cluster.start()
    engine = cluster.engines[0]
    beside = ("shim", "--engine-url", engine.url, "--no-kv", "--port", "0", "--gateway", cluster.url)
    shim = await cluster.parts.run(*beside)
    await shim.line("ready")
    async with cluster.rollout() as rollout:
        await rollout.all_have(2)
        await shim.kill()
        await rollout.all_have(rollout.least + 2)
        # Its load is asked for again, and nobody took it for dead.
        worker = await cluster.gateway.worker(engine)
        assert (worker["state"], worker["generation"]) == ("active", 1)
        shim = await cluster.parts.run(*beside)
        url = json.loads(await shim.line("ready"))["shim"]

        async def reported() -> bool:
            return (await cluster.gateway.http.get(f"{url}/shim/v1/health")).status_code == 200

        await wait_until(reported, "the new shim at work")
        await rollout.all_have(rollout.least + 2)
    assert rollout.troubles == 0
    assert len((await cluster.gateway.get("/workers"))["items"]) == len(cluster.engines)
    await counts_agree(cluster, rollout)
    await journal_replays(cluster)


async def test_a_killed_gateway_goes_on_with_every_trajectory(new_cluster: NewCluster) -> None:
    cluster = new_cluster(options=("--placement", "sticky"))
    await cluster.start()
    async with cluster.rollout() as rollout:
        await rollout.all_have(2)
        # In a pause no step ends, so that it is known what is written: all but the steps that wait.
        (await cluster.gateway.http.post("/pause_generation", json={"mode": "in_place"})).raise_for_status()

        async def nothing_in_hand() -> bool:
            history = (await cluster.gateway.get("/stats"))["history"]
            settled = history["put"] == history["written"] and await cluster.is_mirrored()
            return settled and await cluster.gateway.metric("heddle_core_steps_live") == len(rollout.agents)

        await wait_until(nothing_in_hand, "all but the live steps in the stores")
        homes = {agent.name: agent.answers[-1].worker for agent in rollout.agents}
        answered = {agent.name: len(agent.answers) for agent in rollout.agents}
        await cluster.gateway.part.kill()
        await cluster.start_gateway()
        (await cluster.gateway.http.post("/continue_generation", json={})).raise_for_status()
        await rollout.all_have(rollout.least + 2)
    assert rollout.troubles
    # Its first step in the new life goes to where its KV is.
    back = {agent.name: agent.answers[answered[agent.name]].worker for agent in rollout.agents}
    assert back == homes
    await counts_agree(cluster, rollout, gateway_died=True)
    await journal_replays(cluster)


async def test_a_gateway_that_is_killed_at_any_moment_loses_no_trajectory_and_no_record(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster()
    await cluster.start()
    async with cluster.rollout() as rollout:
        for _ in range(2):
            await rollout.all_have(rollout.least + 2)
            await wait_until(cluster.is_mirrored, "every trajectory in Redis")
            before = {agent.name: len(agent.answers) for agent in rollout.agents}
            await cluster.gateway.part.kill()
            in_hand = sum(len(agent.answers) - before[agent.name] for agent in rollout.agents)
            await cluster.start_gateway()
        await rollout.all_have(rollout.least + 2)
    await cluster.gateway.at_rest()
    await cluster.gateway.is_sound()
    names = {answer.trajectory_id for agent in rollout.agents for answer in agent.answers}
    assert len(names) == len(rollout.agents), "a trajectory was split or two were joined"
    for agent in rollout.agents:
        steps = [answer.step for answer in agent.answers]
        # The number of a step that ended in the last moment may be given once more, never left out.
        assert all(0 <= after - step <= 1 for step, after in pairwise(steps)), (agent.name, steps)
        assert len(steps) - len(set(steps)) <= 2 * (1 + in_hand)
    answered = Counter((one.trajectory_id, one.step) for agent in rollout.agents for one in agent.answers)
    recorded = Counter(await cluster.sql("select trajectory_id, step from steps where outcome = 'done'"))
    assert not answered - recorded, "steps that an agent has and the history has not"
    await journal_replays(cluster)
