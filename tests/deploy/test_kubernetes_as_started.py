"""The emulated overlay, its commands and settings as they stand, run as processes with a real Redis and
PostgreSQL: pods become ready, agents are served through the Service, and a killed leader, a gateway that is
stopped and a worker that is taken out cost no step.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.deploy.manifests import Overlay, with_secrets
from tests.deploy.node import Node, Pod, probes
from tests.system.conftest import WAIT_S, wait_until
from tests.system.faults.accounts import every_trajectory_ended_once
from tests.system.faults.agents import Rollout

pytestmark = [pytest.mark.system, pytest.mark.services]

WORKERS = 2


@dataclass
class Cluster:
    """All of it, ready. ``http``: of an agent that was given the Service's address and a key."""

    node: Node
    overlay: Overlay
    database: str
    http: httpx.AsyncClient

    @property
    def gateways(self) -> list[Pod]:
        return self.node.of("heddle-gateway")

    @property
    def keys(self) -> dict[str, str]:
        """What the Secret says."""
        [gateway, *_] = self.gateways
        return dict(gateway["gateway"].environment)

    async def ask(self, gateway: Pod, path: str) -> Any:
        """What an operator is told by this gateway."""
        key = self.keys["HEDDLE_ADMIN_KEYS"]
        url = gateway["gateway"].url("http")
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT_S) as http:
            return (await http.get(path, headers={"authorization": f"Bearer {key}"})).json()

    async def role(self, gateway: Pod) -> str:
        try:
            return str((await self.ask(gateway, "/ready"))["role"])
        except httpx.TransportError:
            return "away"

    async def becomes(self, gateway: Pod, role: str) -> None:
        async def has_become() -> bool:
            return await self.role(gateway) == role

        await wait_until(has_become, f"{gateway.name} as the {role}")

    async def leader(self) -> Pod:
        [found] = [one for one in self.gateways if await self.role(one) == "leader"]
        return found

    async def workers(self, gateway: Pod) -> dict[str, str]:
        """State by name."""
        return {one["name"]: one["state"] for one in (await self.ask(gateway, "/workers"))["workers"]}

    async def sql(self, query: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.database)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    async def history_has(self, rollout: Rollout) -> bool:
        answers = sum(len(agent.answers) for agent in rollout.agents)
        [(written,)] = await self.sql("select count(*) from steps where outcome = 'done'")
        return bool(written >= answers)


@pytest.fixture
async def cluster(tmp_path: Path, own_postgresql: Any) -> AsyncIterator[Cluster]:
    overlay = Overlay.rendered(with_secrets(tmp_path), "emulated")
    # The image makes user and database of its variables.
    told = overlay.environment(
        overlay.named("StatefulSet", "heddle-postgres"),
        overlay.named("StatefulSet", "heddle-postgres")["spec"]["template"]["spec"]["containers"][0],
        "heddle-postgres-0",
        "127.0.0.1",
    )
    admin = await asyncpg.connect(own_postgresql.url("postgres"))
    await admin.execute(f'create database "{told["POSTGRES_DB"]}"')
    await admin.close()
    outside = {"heddle-postgres": ("127.0.0.1", own_postgresql.port)}
    async with Node(overlay, tmp_path, outside) as node:
        numbers = {"heddle-postgres": 0, "heddle-worker": WORKERS}
        for owner in overlay.with_pods():
            name = owner["metadata"]["name"]
            node.plan(owner, numbers.get(name, owner["spec"]["replicas"]))
        for pod in node.pods:
            node.make(pod)
        # In any order, and all at once, as a cluster would.
        for pod in node.pods:
            await pod.start()
        for pod in node.pods:
            await wait_until(pod.ready, f"{pod.name} ready")
        [gateway, *_] = node.of("heddle-gateway")
        key = gateway["gateway"].environment["HEDDLE_API_KEYS"]
        async with httpx.AsyncClient(
            base_url=f"http://{node.address('heddle-gateway')}:8000",
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            timeout=WAIT_S,
        ) as http:
            yield Cluster(node, overlay, own_postgresql.url(told["POSTGRES_DB"]), http)


async def test_pods_become_ready_and_agents_are_served(cluster: Cluster) -> None:
    for pod in cluster.node.pods:
        for container, kind in probes(pod):
            assert await container.probe(kind), f"{pod.name}: {kind} of {container.name}"
        for container in pod.containers:
            assert await container.listens(), f"{pod.name}: {container.name} does not listen as it is said"
    # The shims registered by the Service, under the names that StatefulSets give.
    names = {pod.name for pod in cluster.node.of("heddle-worker")}

    async def all_serve() -> bool:
        found = [await cluster.workers(one) for one in cluster.gateways]
        return found == [dict.fromkeys(names, "active")] * len(found)

    await wait_until(all_serve, "every worker in service, whichever gateway is asked")
    assert sorted([await cluster.role(one) for one in cluster.gateways]) == ["follower", "leader"]
    rollout = Rollout(cluster.http)

    async def planner_speaks() -> bool:
        found = [await cluster.ask(one, "/ready") for one in cluster.gateways]
        return "ready" in {one["planner"] for one in found}

    async with rollout:
        await rollout.all_have(2)
        await wait_until(planner_speaks, "forecasts of the planner, asked with its key")
    assert rollout.troubles == 0
    async with httpx.AsyncClient(base_url=cluster.http.base_url, trust_env=False) as stranger:
        assert (await stranger.post("/v1/chat/completions", json={})).status_code == 401
        assert (await stranger.get("/metrics")).status_code == 401
    await wait_until(lambda: cluster.history_has(rollout), "every step in PostgreSQL")
    await every_trajectory_ended_once(cluster, rollout)  # type: ignore[arg-type]


async def test_a_killed_leader_a_stopped_gateway_and_a_worker_that_is_taken_out_cost_no_step(
    cluster: Cluster,
) -> None:
    rollout = Rollout(cluster.http)
    async with rollout:
        await rollout.all_have(1)
        leader = await cluster.leader()
        [other] = [one for one in cluster.gateways if one is not leader]
        await leader["gateway"].kill()

        await cluster.becomes(other, "leader")
        await rollout.all_have(rollout.least + 1)
        # The kubelet starts the container again in the same pod, with the same volumes.
        await leader.start()
        await wait_until(leader.ready, "the gateway that was killed to be ready again")
        await cluster.becomes(leader, "follower")
        broken = rollout.troubles
        assert broken, "nobody was at the gateway that was killed"

        # kubectl scale: the last worker goes, and only when its steps have ended.
        worker = cluster.node.of("heddle-worker")[-1]
        assert await worker.delete() == [0, 0]
        assert worker.name not in await cluster.workers(other)
        await rollout.all_have(rollout.least + 1)

        # kubectl rollout restart: the leader goes, and the other one leads at once.
        assert await other.delete() == [0]
        await cluster.becomes(leader, "leader")
        await rollout.all_have(rollout.least + 1)
    await wait_until(lambda: cluster.history_has(rollout), "every step in PostgreSQL")
    await every_trajectory_ended_once(cluster, rollout)  # type: ignore[arg-type]
    assert (await cluster.ask(leader, "/admin/v1/audit"))["broken"] == []
