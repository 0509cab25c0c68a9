"""What may be added to the fleet, and what may not."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from heddle_gateway.fleet import (
    AddressRefused,
    Fleet,
    FleetFull,
    WorkerSpec,
)

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


async def test_adding_a_url_again_gives_the_same_worker(new_fleet: NewFleet, serve: Serve) -> None:
    fake = await serve()
    fleet = new_fleet()
    spellings = [fake.url, fake.url + "/", fake.url + "/v1", fake.url.replace("http", "HTTP")] * 4
    views = await asyncio.gather(*(fleet.add(WorkerSpec(url)) for url in spellings))
    assert {view.worker_id for view in views} == {1}
    assert len(fleet.list()) == 1


async def test_a_refused_url_leaves_no_trace(new_fleet: NewFleet, quick: Any) -> None:
    fleet = new_fleet(replace(quick, allowed_hosts=("gpu1",)))
    for url in ("http://169.254.169.254", "http://2852039166", "http://gpu2:1", "nonsense"):
        with pytest.raises(AddressRefused):
            await fleet.add(WorkerSpec(url))
    assert fleet.list() == []


async def test_the_registry_is_bounded(new_fleet: NewFleet, quick: Any) -> None:
    fleet = new_fleet(replace(quick, max_workers=2))
    for port in (1, 2):
        await fleet.add(WorkerSpec(f"http://127.0.0.1:{port}"))
    with pytest.raises(FleetFull, match="2"):
        await fleet.add(WorkerSpec("http://127.0.0.1:3"))
    assert (await fleet.add(WorkerSpec("http://127.0.0.1:1"))).worker_id == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a\r\nx: 1"},
        {"name": ""},
        {"name": "grün"},
        {"api_key": "k\n"},
        {"degree": 0},
        {"slots": 0},
        {"kv_tokens": -1},
    ],
)
def test_a_spec_that_cannot_be_meant_names_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerSpec("http://gpu1:1", **wrong)
