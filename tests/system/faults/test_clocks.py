"""The wall clock of one host is five minutes off, and steps to the other side: nothing goes by it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.conftest import wait_until

from .accounts import counts_agree, journal_replays
from .cluster import Cluster, faked_clock

pytestmark = pytest.mark.faults

NewCluster = Callable[..., Cluster]


@pytest.mark.parametrize("host", ["gateway", "planner", "engine-0"])
async def test_a_clock_that_is_five_minutes_off_changes_nothing(
    new_cluster: NewCluster, faketime: str, tmp_path: Path, host: str
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("-300")
    cluster = new_cluster(environments={host: faked_clock(faketime, clock)})
    await cluster.start()
    async with cluster.rollout() as rollout:
        for off in ("-300", "+300"):
            clock.write_text(off)
            forecasts = await cluster.gateway.metric("heddle_planner_forecasts_applied_total")
            plans = await cluster.gateway.metric("heddle_plans_activated_total")

            async def is_planned(forecasts: float = forecasts, plans: float = plans) -> bool:
                applied = await cluster.gateway.metric("heddle_planner_forecasts_applied_total")
                activated = await cluster.gateway.metric("heddle_plans_activated_total")
                in_force = await cluster.gateway.metric("heddle_plans_current_version")
                return applied > forecasts and activated > plans and in_force > 0

            await wait_until(is_planned, "forecasts, and a new plan in force")
            await rollout.all_have(rollout.least + 2)
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await wait_until(cluster.is_mirrored, "the live state in Redis")
    # The next gateway's clock is right: what the last one wrote is not too old, nor of the future.
    cluster.environments.clear()
    last = {agent.name: len(agent.answers) for agent in rollout.agents}
    await cluster.gateway.part.kill()
    await cluster.start_gateway()
    await asyncio.gather(*(agent.step() for agent in rollout.agents))
    assert {agent.name: agent.answers[-1].step for agent in rollout.agents} == last
    await counts_agree(cluster, rollout, gateway_died=True)
    await journal_replays(cluster)
