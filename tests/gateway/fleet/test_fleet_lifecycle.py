import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from heddle_gateway.fleet import (
    Fleet,
    FleetTuning,
    WorkerFacts,
    WorkerSpec,
    WorkerState,
)

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


async def test_the_byte_path_gets_an_endpoint_for_the_current_generation_only(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url + "/v1/"))
    await listener.until_told("up", view.worker_id, 1)
    endpoint = fleet.worker(view.worker_id, 1)
    assert endpoint is not None
    assert (endpoint.base_url, endpoint.features.abort) == (fake.url, True)
    assert fleet.worker(view.worker_id, 2) is None
    assert fleet.worker(99, 1) is None


async def test_a_worker_that_is_not_there_yet_becomes_active_when_it_comes(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve(start=False)
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    assert view.state is WorkerState.PROBING
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert fleet.get(view.worker_id).state is WorkerState.PROBING
    assert (fleet.active(), listener.told) == (0, [])
    await fake.start()
    await listener.until_told("up", view.worker_id, 1)
    assert (fleet.active(), fleet.get(view.worker_id).last_error) == (1, None)


async def test_a_worker_with_a_wrong_key_is_mended_by_adding_it_again(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve(api_key="sk-right")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url, api_key="sk-wrong"))
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert fleet.active() == 0
    again = await fleet.add(WorkerSpec(fake.url, api_key="sk-right"))
    assert again.worker_id == view.worker_id
    await listener.until_told("up", view.worker_id, 1)
    assert fleet.worker(view.worker_id, 1).api_key == "sk-right"

    await fleet.add(WorkerSpec(fake.url))
    assert fleet.worker(view.worker_id, 1).api_key == "sk-right", "nothing was said of it"
    fake.api_key = "sk-new"
    await fleet.add(WorkerSpec(fake.url, api_key="sk-new"))
    assert fleet.worker(view.worker_id, 1).api_key == "sk-new", "also of one that serves"


async def test_a_dead_worker_comes_back_as_a_new_generation(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    await fake.stop()
    await listener.until_told("down", view.worker_id, 1)
    assert fleet.get(view.worker_id).state is WorkerState.DOWN
    assert fleet.worker(view.worker_id, 1) is None
    await fake.start()
    await listener.until_told("up", view.worker_id, 2)
    assert listener.changes() == [("up", 1), ("down", 1), ("up", 2)]
    assert fleet.worker(view.worker_id, 1) is None
    assert fleet.worker(view.worker_id, 2) is not None


@pytest.mark.parametrize(
    ("kind", "restart"),
    [
        ("sglang", {"random_seed": 12}),
        ("sglang", {"startup_time": {"load_weight": 1.26}}),
        ("sglang", {"heddle_instance_id": "b"}),
        ("sglang", {"max_total_num_tokens": 100}),
    ],
)
async def test_a_restart_between_two_probes_is_noticed(
    new_fleet: NewFleet, serve: Serve, listener: Any, kind: str, restart: dict[str, Any]
) -> None:
    fake = await serve(kind, heddle_instance_id="a")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    status, info = fake.answers["/server_info"]
    fake.answers["/server_info"] = (status, info | restart)
    await listener.until_told("up", view.worker_id, 2)
    assert listener.changes() == [("up", 1), ("down", 1), ("up", 2)]


async def test_a_vllm_restart_is_noticed_by_its_process_start(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve("vllm")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    status, page = fake.answers["/metrics"]
    fake.answers["/metrics"] = (status, page.replace("1.7e+09", "1.70000001e+09"))
    await listener.until_told("up", view.worker_id, 2)


async def test_new_weights_in_a_running_engine_are_no_restart(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fake.answers["/model_info"] = (200, {"weight_version": "step-2"})
    await listener.until(lambda: fleet.get(view.worker_id).weight_version == "step-2")
    assert listener.changes() == [("up", 1), ("weights", 1)]
    assert listener.told[-1].more == {"weight_version": "step-2"}
    # A probe that fails to learn the version does not unlearn it.
    fake.answers["/model_info"] = (500, "")
    probes = len(fake.seen)
    await listener.until(lambda: len(fake.seen) > probes + 10)
    assert fleet.get(view.worker_id).weight_version == "step-2"


async def test_a_probe_that_fails_now_and_then_does_not_bring_a_worker_down(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    good = fake.answers["/server_info"]
    for _ in range(3):
        failures = fleet.get(view.worker_id).probe_failures
        fake.answers["/server_info"] = (500, "")
        await listener.until(lambda seen=failures: fleet.get(view.worker_id).probe_failures > seen)
        assert fleet.get(view.worker_id).state is WorkerState.SUSPECT
        assert fleet.worker(view.worker_id, 1) is not None
        fake.answers["/server_info"] = good
        await listener.until(lambda: fleet.get(view.worker_id).state is WorkerState.ACTIVE)
    assert listener.changes() == [("up", 1)]


async def test_three_failed_probes_in_a_row_bring_a_worker_down(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fake.answers["/server_info"] = (500, "broken")
    await listener.until_told("down", view.worker_id, 1)
    found = fleet.get(view.worker_id)
    assert found.probe_failures == 3
    assert "500" in str(found.last_error)


async def test_a_busy_worker_that_streams_is_not_dead(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    """Its probes hang, its steps stream: it must stay. When the stream ends too, it must go."""
    fake = await serve()
    fleet = new_fleet(replace(quick, probe_timeout_s=0.3, failures_before_down=2))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)

    async def hang_unless_loads(path: str) -> None:
        if path != "/v1/loads":
            fleet.note_success(view.worker_id, 1)
            await asyncio.Event().wait()

    fake.before_answer = hang_unless_loads
    await listener.until(lambda: fleet.get(view.worker_id).busy_probes >= 5)
    assert fleet.get(view.worker_id).state is WorkerState.ACTIVE
    assert listener.changes() == [("up", 1)]

    async def hang(path: str) -> None:
        await asyncio.Event().wait()

    fake.before_answer = hang
    await listener.until_told("down", view.worker_id, 1)


async def test_an_engine_that_loads_weights_behind_a_server_that_answers_is_not_dead(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    """SGLang's scheduler is silent for minutes then, with no step streaming; its /ping still says 200."""
    fake = await serve()
    fleet = new_fleet(replace(quick, probe_timeout_s=0.3))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)

    async def silent_scheduler(path: str) -> None:
        if path == "/server_info":
            await asyncio.Event().wait()

    fake.before_answer = silent_scheduler
    await listener.until(lambda: fleet.get(view.worker_id).busy_probes >= 5)
    assert listener.changes() == [("up", 1)]
    assert "scheduler" in str(fleet.get(view.worker_id).last_error)
    fake.answers["/ping"] = (503, "")
    await listener.until_told("down", view.worker_id, 1)


async def test_hanging_workers_do_not_bring_a_healthy_one_down(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    fleet = new_fleet(replace(quick, probe_timeout_s=1.0, load_timeout_s=0.5, max_workers=12))
    healthy = await serve()
    view = await fleet.add(WorkerSpec(healthy.url))
    await listener.until_told("up", view.worker_id, 1)
    hanging = [await serve() for _ in range(11)]
    for fake in hanging:
        fake.gate.clear()
        await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: all(fake.seen for fake in hanging))
    probes = len(healthy.seen)
    await listener.until(lambda: len(healthy.seen) > probes + 40)
    found = fleet.get(view.worker_id)
    assert (found.state, found.probe_failures, found.busy_probes) == (WorkerState.ACTIVE, 0, 0)


async def test_a_refused_step_is_followed_by_a_probe_at_once(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    """With a minute between probes, the byte path's word is what makes the loss known in time."""
    fake = await serve()
    fleet = new_fleet(replace(quick, probe_period_s=60.0, load_period_s=60.0))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    await fake.stop()
    fleet.note_failure(view.worker_id, 1, "unreachable")
    await listener.until_told("down", view.worker_id, 1)


async def test_a_failed_step_on_a_healthy_worker_does_not_bring_it_down(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: Any
) -> None:
    fake = await serve()
    fleet = new_fleet(replace(quick, probe_period_s=60.0, load_period_s=60.0))
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    for _ in range(10):
        probes = len(fake.seen)
        fleet.note_failure(view.worker_id, 1, "unreachable")
        await listener.until(lambda seen=probes: len(fake.seen) > seen)
    assert fleet.get(view.worker_id).passive_failures == 10
    assert listener.changes() == [("up", 1)]


async def test_a_probe_without_an_open_file_for_it_counts_against_no_worker(
    new_fleet: NewFleet, serve: Serve, listener: Any, no_more_files: Any
) -> None:
    fake = await serve(headers={"connection": "close"})
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    with no_more_files():
        await listener.until(lambda: fleet.get(view.worker_id).busy_probes >= 5)
        found = fleet.get(view.worker_id)
    assert "can open no more files" in (found.last_error or "")
    assert (found.state, found.probe_failures) == (WorkerState.ACTIVE, 0)
    assert listener.changes() == [("up", 1)]


async def test_signals_about_an_old_generation_or_an_unknown_worker_are_ignored(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    fleet.note_failure(view.worker_id, 0, "unreachable")
    fleet.note_failure(99, 1, "unreachable")
    fleet.note_success(99, 1)
    assert fleet.get(view.worker_id).passive_failures == 0


async def test_adding_and_draining_others_does_not_stop_the_watch_over_one(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    """Reconfigure, then break a worker: the loss is still noticed."""
    watched = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(watched.url))
    await listener.until_told("up", view.worker_id, 1)
    for _ in range(5):
        other = await serve("openai")
        added = await fleet.add(WorkerSpec(other.url))
        await listener.until_told("up", added.worker_id, 1)
        fleet.drain(added.worker_id)
        await listener.until_told("removed", added.worker_id, 1)
    await watched.stop()
    await listener.until_told("down", view.worker_id, 1)


async def test_a_watch_that_fails_is_started_again(
    serve: Serve, new_fleet: NewFleet, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that raises is a fault; it must not end the watch over the worker."""
    fake = await serve()
    fleet = new_fleet()
    told_up = listener.worker_up
    raised = []

    def raise_once(facts: WorkerFacts) -> None:
        told_up(facts)
        if not raised:
            raised.append(facts)
            raise RuntimeError("listener's fault")

    monkeypatch.setattr(listener, "worker_up", raise_once)
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fleet.stats()["task_restarts"] == 1)
    await fake.stop()
    await listener.until_told("down", view.worker_id, 1)


async def test_churn_of_many_workers_keeps_every_story_in_order(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    """Eight workers die and return: each tells up, down, up, ... with generations in order."""
    fakes = [await serve() for _ in range(8)]
    fleet = new_fleet()
    views = [await fleet.add(WorkerSpec(fake.url)) for fake in fakes]

    async def live_and_die(fake: Any, worker_id: int, deaths: int) -> None:
        for generation in range(1, deaths + 1):
            await listener.until_told("up", worker_id, generation)
            await fake.stop()
            await listener.until_told("down", worker_id, generation)
            await fake.start()
        await listener.until_told("up", worker_id, deaths + 1)

    await asyncio.gather(
        *(
            live_and_die(fake, view.worker_id, deaths=index % 4)
            for index, (fake, view) in enumerate(zip(fakes, views, strict=True))
        )
    )
    for index, view in enumerate(views):
        story = [("up", 1)]
        for generation in range(1, index % 4 + 1):
            story += [("down", generation), ("up", generation + 1)]
        assert listener.changes(view.worker_id) == story
    assert fleet.active() == 8
    assert fleet.stats()["task_restarts"] == 0


async def test_models_name_the_workers_that_serve_them(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: FleetTuning
) -> None:
    cards = {"object": "list", "data": [{"id": "gpt", "object": "model"}]}
    sglang, openai = await serve("sglang"), await serve("openai", answers={"/v1/models": (200, cards)})
    fleet = new_fleet(replace(quick, one_model=False))
    first = await fleet.add(WorkerSpec(sglang.url))
    second = await fleet.add(WorkerSpec(openai.url))
    absent = await fleet.add(WorkerSpec("http://127.0.0.1:1"))
    await listener.until(lambda: fleet.active() == 2)
    served = fleet.served
    assert served.listed() == {"qwen3-8b": (first.worker_id,), "gpt": (second.worker_id,)}
    assert served.serves(first.worker_id, "qwen3-8b")
    assert not served.serves(first.worker_id, "gpt")
    assert served.serves(first.worker_id, None)
    assert served.serves(absent.worker_id, "gpt"), "what it serves is not known yet"


async def test_closing_stops_all_asking(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    fake = await serve()
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", view.worker_id, 1)
    await fleet.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("watch:", "loads:"))]
