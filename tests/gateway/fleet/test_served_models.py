"""A fleet serves one model, under every name that its workers have had."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from heddle_gateway.fleet import Fleet, FleetTuning, WorkerSpec, WorkerState

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


def lists(*names: str) -> tuple[int, Any]:
    """What an engine of these models answers at /v1/models."""
    return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


async def active(fleet: Fleet, fake: Any, listener: Any, **said: Any) -> int:
    view = await fleet.add(WorkerSpec(fake.url, **said))
    await listener.until(lambda: fleet.get(view.worker_id).state is WorkerState.ACTIVE)
    return view.worker_id


async def aside(fleet: Fleet, fake: Any, listener: Any) -> int:
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fleet.get(view.worker_id).state is WorkerState.ASIDE)
    return view.worker_id


async def test_a_worker_of_another_model_is_kept_aside_until_the_others_are_gone(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    first = await active(fleet, await serve(), listener)
    other = await aside(fleet, await serve(answers={"/v1/models": lists("llama")}), listener)
    view = fleet.get(other)
    assert (view.models, fleet.active(), list(fleet.served.listed())) == (("llama",), 1, ["qwen3-8b"])
    assert "'llama'" in str(view.last_error)
    assert "'qwen3-8b'" in str(view.last_error)
    assert fleet.served.aside() == {view.name: view.last_error}
    assert fleet.stats()["workers_aside"] == 1
    assert listener.changes(other) == []
    fleet.drain(first)
    await listener.until_told("up", other, 1)
    assert (fleet.served.aside(), fleet.get(other).last_error) == ({}, None)


async def test_a_worker_that_is_kept_aside_is_removed_at_once(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    await active(fleet, await serve(), listener)
    other = await aside(fleet, await serve(answers={"/v1/models": lists("llama")}), listener)
    assert fleet.drain(other).state is WorkerState.REMOVED
    assert listener.changes(other) == []


async def test_the_same_model_under_another_name_is_taken_when_the_operator_says_so(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    await active(fleet, await serve(), listener)
    other = await serve(answers={"/v1/models": lists("/models/qwen3-8b")})
    await active(fleet, other, listener, model="qwen3-8b")
    assert fleet.active() == 2


@pytest.mark.parametrize("listed", [lists("qwen3-8b", "my-adapter"), lists()])
async def test_a_shared_name_or_none_at_all_is_no_other_model(
    new_fleet: NewFleet, serve: Serve, listener: Any, listed: Any
) -> None:
    fleet = new_fleet()
    await active(fleet, await serve(), listener)
    fake = await serve(answers={"/v1/models": listed, "/model_info": (200, {})})
    await active(fleet, fake, listener)


async def test_a_stranger_does_not_take_the_place_of_workers_that_are_down(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    fake = await serve()
    first = await active(fleet, fake, listener)
    stranger = await serve(answers={"/v1/models": lists("llama")})
    other = await aside(fleet, stranger, listener)
    await fake.stop()
    await listener.until_told("down", first, 1)
    asked = len(stranger.seen)
    # Enough for two times that it is asked who it is.
    await listener.until(lambda: len(stranger.seen) > asked + 30)
    assert fleet.get(other).state is WorkerState.ASIDE
    await fake.start()
    await listener.until_told("up", first, 2)


async def test_a_fleet_whose_servers_are_all_started_anew_with_another_model_serves_that(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    fakes = [await serve(), await serve()]
    ids = [await active(fleet, fake, listener) for fake in fakes]
    for fake, worker_id in zip(fakes, ids, strict=True):
        await fake.stop()
        await listener.until_told("down", worker_id, 1)
        fake.answers["/v1/models"] = lists("llama")
        await fake.start()
    for worker_id in ids:
        await listener.until_told("up", worker_id, 2)
    assert set(fleet.served.listed()) == {"llama"}


async def test_a_model_that_new_weights_renamed_is_known_by_both_names(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    fakes = [await serve(), await serve()]
    ids = [await active(fleet, fake, listener) for fake in fakes]
    for name in ("/ckpt/1", "/ckpt/2"):
        for fake in fakes:
            fake.answers["/v1/models"] = lists(name)
        await listener.until(lambda name=name: all(fleet.get(one).models == (name,) for one in ids))
    for name in ("qwen3-8b", "/ckpt/1", "/ckpt/2"):
        assert fleet.served.knows(name)
        assert fleet.served.serves(ids[0], name)
    assert set(fleet.served.listed()) == {"qwen3-8b", "/ckpt/2"}
    assert not fleet.served.knows("/ckpt/3")
    # One that dies starts with the name it had at first, and is no stranger.
    await fakes[0].stop()
    await listener.until_told("down", ids[0], 1)
    fakes[0].answers["/v1/models"] = lists("qwen3-8b")
    await fakes[0].start()
    await listener.until_told("up", ids[0], 2)
    assert fleet.served.knows("/ckpt/1")
    assert [state for _, _, state in fleet.registered()] == [WorkerState.ACTIVE] * 2


async def test_an_adapter_is_found_before_the_next_probe(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: FleetTuning
) -> None:
    fleet = new_fleet(replace(quick, probe_period_s=3600.0))
    fake = await serve()
    await active(fleet, fake, listener)
    fake.answers["/v1/models"] = lists("qwen3-8b", "my-adapter")
    assert not fleet.served.knows("my-adapter")
    assert await fleet.served.look_for("my-adapter")
    assert fleet.served.knows("my-adapter")
    assert not await fleet.served.look_for("another")


async def test_a_name_passes_while_a_worker_cannot_be_asked_whether_it_has_it(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: FleetTuning
) -> None:
    fleet = new_fleet(replace(quick, probe_period_s=3600.0))
    fakes = [await serve(), await serve()]
    for fake in fakes:
        await active(fleet, fake, listener)
    assert not await fleet.served.look_for("my-adapter")
    fakes[1].answers["/v1/models"] = (503, {})
    assert await fleet.served.look_for("my-adapter")
    assert not fleet.served.knows("my-adapter"), "the next one is asked about again"
    fakes[1].answers["/v1/models"] = lists("qwen3-8b")
    assert not await fleet.served.look_for("my-adapter")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (None, True),
        ("", True),
        ("qwen3-8b", True),
        ("qwen3-8b:my-adapter", True),
        ("default", True),
        ("qwen3", False),
        ("other:qwen3-8b", False),
        (":", False),
    ],
)
async def test_names_are_read_as_sglang_reads_them(
    new_fleet: NewFleet, serve: Serve, listener: Any, name: str | None, known: bool
) -> None:
    fleet = new_fleet()
    await active(fleet, await serve(), listener)
    assert fleet.served.knows(name) is known


async def test_default_is_no_name_of_an_engine_that_does_not_read_it_so(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    await active(fleet, await serve("vllm"), listener)
    assert not fleet.served.knows("default")


async def test_where_nobody_can_say_every_name_may_be_asked_for(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fleet = new_fleet()
    assert fleet.served.knows("anything"), "no worker"
    fake = await serve()
    worker_id = await active(fleet, fake, listener)
    assert not fleet.served.knows("anything")
    silent = await serve(answers={"/v1/models": lists(), "/model_info": (200, {})})
    second = await active(fleet, silent, listener)
    assert fleet.served.knows("anything"), "one that lists nothing"
    fleet.drain(second)
    await fake.stop()
    await listener.until_told("down", worker_id, 1)
    assert fleet.served.knows("anything"), "none that serves"


async def test_without_the_check_any_worker_is_taken_and_any_name(
    new_fleet: NewFleet, serve: Serve, listener: Any, quick: FleetTuning
) -> None:
    fleet = new_fleet(replace(quick, one_model=False))
    await active(fleet, await serve(), listener)
    await active(fleet, await serve(answers={"/v1/models": lists("llama")}), listener)
    assert fleet.served.knows("anything")
