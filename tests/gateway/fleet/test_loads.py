from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from heddle_gateway.fleet import Fleet, WorkerSpec

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


async def test_loads_of_all_ranks_add_up(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    ranks = [
        {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 0, "num_used_tokens": 100},
        {"dp_rank": 1, "num_running_reqs": 4, "num_waiting_reqs": 5, "num_used_tokens": 50},
    ]
    fake = await serve(answers={"/v1/loads": (200, {"loads": ranks})})
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    told = await listener.until_told("load", view.worker_id, 1)
    assert told.more == {"running": 7, "waiting": 5, "kv_used": 150}
    found = fleet.get(view.worker_id)
    assert (found.running, found.waiting, found.kv_used) == (7, 5, 150)
    assert found.load_age_s is not None


async def test_vllm_loads_come_from_its_metrics(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    fake = await serve("vllm")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    told = await listener.until_told("load", view.worker_id, 1)
    assert told.more == {"running": 5, "waiting": 2, "kv_used": 4000}


async def test_llamacpp_loads_are_its_busy_slots(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    fake = await serve("llamacpp")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    told = await listener.until_told("load", view.worker_id, 1)
    assert told.more == {"running": 1, "waiting": 0, "kv_used": 0}


async def test_a_server_without_loads_is_not_polled_for_them(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve("openai")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fake.seen.clear()
    await listener.until(lambda: len(fake.seen) >= 3)
    assert {seen.path for seen in fake.seen} == {"/v1/models"}
    assert listener.reports() == []


async def test_a_report_that_comes_too_late_is_dropped(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    fake = await serve()
    fleet = new_fleet(replace(quick, load_timeout_s=0.05, probe_period_s=60.0))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("load", view.worker_id, 1)
    fake.gate.clear()
    reports = len(listener.reports())
    await listener.until(lambda: fleet.get(view.worker_id).stale_loads >= 2)
    assert len(listener.reports()) <= reports + 1  # one may have been on its way
    fake.gate.set()
    reports = len(listener.reports())
    await listener.until(lambda: len(listener.reports()) > reports)


async def test_a_report_that_spans_a_restart_is_dropped(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    """The answer to a question put to the first life arrives when the second is known already."""
    fake = await serve()
    fleet = new_fleet(quick)
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("load", view.worker_id, 1)

    held = []

    async def hold_one_load(path: str) -> tuple[int, Any] | None:
        if path != "/v1/loads" or held:
            return None
        held.append(path)
        fake.answers["/server_info"][1]["random_seed"] = 99
        await listener.until_told("up", view.worker_id, 2)
        return 200, {"loads": [{"dp_rank": 0, "num_running_reqs": 777}]}

    fake.before_answer = hold_one_load
    await listener.until_told("up", view.worker_id, 2)
    await listener.until(lambda: fleet.get(view.worker_id).stale_loads == 1)
    seen = len(listener.reports())
    await listener.until(lambda: len(listener.reports()) > seen + 2)
    assert 777 not in {told.more["running"] for told in listener.reports()}


async def test_a_broken_load_page_says_nothing_about_health(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("load", view.worker_id, 1)
    fake.answers["/v1/loads"] = (500, "boom")
    await listener.until(lambda: fleet.get(view.worker_id).stale_loads >= 5)
    assert listener.changes() == [("up", 1)]
    assert fleet.get(view.worker_id).state == "active"
