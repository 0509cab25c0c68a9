"""A gateway and two emulated workers with their shims: KV moves, and the next step finds it."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from .conftest import NewWorkers

NewGateway = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[None]]

STICKY = {"placement": "sticky", "order": "fcfs", "admission": "unlimited"}


async def linked(gateway: Any, until: Until, workers: int) -> None:
    def all_linked() -> bool:
        views = gateway.parts.driver.worker_views()
        return len([view for view in views if view["can_migrate"]]) == workers

    await until(all_linked, "every worker's shim to be asked")


class Agent:
    """Asks with a growing history under one id."""

    def __init__(self, gateway: Any, name: str) -> None:
        self._gateway = gateway
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": "ab " * 400}]
        self.name = name

    async def step(self) -> tuple[str, int]:
        """One step; the worker it ran on, and the prompt tokens that were found there."""
        answer = await self._gateway.client.post(
            "/v1/chat/completions",
            json={"model": "default", "messages": self._messages, "max_tokens": 40},
            headers={"x-heddle-trajectory-id": self.name},
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        self._messages += [body["choices"][0]["message"], {"role": "user", "content": "go on " * 20}]
        cached = (body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return answer.headers["x-heddle-worker"], cached


async def test_a_trajectory_is_moved_in_its_gap_and_its_next_step_finds_its_kv(
    new_gateway: NewGateway, new_workers: NewWorkers, until: Until
) -> None:
    server = await new_workers(1, 1)
    gateway = await new_gateway(*(SimpleNamespace(url=url) for url in server.urls), policy=STICKY)
    await linked(gateway, until, 2)
    agent = Agent(gateway, "swe/1")
    places = [await agent.step() for _ in range(3)]
    here = places[0][0]
    assert {worker for worker, _ in places} == {here}
    listed = (await gateway.client.get("/admin/v1/workers")).json()["items"]
    assert all("migrate" in worker["features"] for worker in listed)
    names = [worker["name"] for worker in listed]
    (there,) = set(names) - {here}

    wanted = {"trajectory_id": "swe/1", "to": there, "deadline_s": 60}
    asked = await gateway.client.post("/admin/v1/migrations", json=wanted)
    assert asked.status_code == 202, asked.text
    assert asked.json()["items"][0]["asked_by"] == "operator"
    stats = gateway.parts.driver.stats
    await until(lambda: stats()["migrations_landed_total"] == 1, "the move to land")
    (move,) = (await gateway.client.get("/admin/v1/migrations")).json()["items"]
    assert (move["state"], move["from_worker"], move["to_worker"]) == ("landed", here, there)
    assert move["tokens_landed"] >= 400
    assert move["ended_at"] is not None

    worker, cached = await agent.step()
    assert (worker, cached >= move["tokens_landed"]) == (there, True)
    await until(lambda: stats()["migrations_found_total"] == 1, "the move to be verified")
    assert stats()["migrations_hidden_total"] == 1
    assert gateway.parts.driver.audit() == []
    await gateway.stop()
    again = await new_gateway(database=gateway.parts.settings.database)
    assert (await again.client.get("/admin/v1/migrations")).json()["items"] == [move]
    for emulated in server.workers:
        assert emulated.engine.audit() == []
        assert emulated.engine.pool.used == 0


async def test_what_cannot_be_moved_is_refused_with_the_field_and_what_to_do(
    new_gateway: NewGateway, new_workers: NewWorkers, until: Until
) -> None:
    server = await new_workers(1, 1)
    gateway = await new_gateway(*(SimpleNamespace(url=url) for url in server.urls), policy=STICKY)
    await linked(gateway, until, 2)
    agent = Agent(gateway, "swe/1")
    here, _ = await agent.step()
    for body, status, field in [
        ({"trajectory_id": "swe/9", "to": here}, 404, "trajectory_id"),
        ({"trajectory_id": "swe/1", "to": "nowhere"}, 404, "to"),
        ({"trajectory_id": "swe/1", "to": here}, 409, "to"),
        ({"trajectory_id": "swe/1"}, 422, "to"),
        ({"trajectory_id": "swe/1", "to": here, "deadline_s": 0}, 422, "deadline_s"),
    ]:
        refused = await gateway.client.post("/admin/v1/migrations", json=body)
        problem = refused.json()
        assert (refused.status_code, problem["field"]) == (status, field), problem
        assert problem["fix"]
    assert gateway.parts.driver.stats()["migrations_requested_total"] == 0


async def test_a_trajectory_whose_target_dies_goes_on_where_it_was(
    new_gateway: NewGateway, new_workers: NewWorkers, until: Until
) -> None:
    server, doomed = await new_workers(1), await new_workers(1)
    urls = [*server.urls, *doomed.urls]
    gateway = await new_gateway(*(SimpleNamespace(url=url) for url in urls), policy=STICKY)
    await linked(gateway, until, 2)
    agents = [Agent(gateway, f"swe/{number}") for number in range(2)]
    homes = [(await agent.step())[0] for agent in agents]
    alive = server.urls[0].removeprefix("http://")
    agent = agents[homes.index(alive)]
    await doomed.__aexit__(None, None, None)
    asked = await gateway.client.post(
        "/admin/v1/migrations",
        json={"trajectory_id": agent.name, "to": doomed.urls[0].removeprefix("http://")},
    )
    if asked.status_code == 202:
        stats = gateway.parts.driver.stats
        await until(lambda: stats()["transfers"] == 0 and stats()["transfers_requested"] == 0, "its end")
    worker, cached = await agent.step()
    assert (worker, cached > 0) == (alive, True)
    assert gateway.parts.driver.audit() == []
