"""Re-shaping a real host with scripted engines over a socket: whatever goes wrong, GPUs do not stay empty."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from heddle_contracts.fleet import EngineState, HostStatus
from heddle_planner.fleet.hosts import HostError, Hosts, MoveFailed
from heddle_planner.fleet.shape import Reshaping, ShapeError, reshape
from heddle_shim.host.gateways import DrainFailed
from heddle_shim.host.host import Host
from heddle_shim.host.launching import LaunchFailed
from heddle_shim.host.routes import HostRoutes
from heddle_shim.http_server import AppServer

WAIT_S = 60.0


class ScriptedEngine:
    shim_url = None
    registers_itself = False

    def __init__(self, gpus: Sequence[int], world: "World") -> None:
        self.gpus = tuple(gpus)
        self.url = f"http://gpu{'-'.join(map(str, gpus))}"
        self._world = world

    async def ready(self) -> None:
        if len(self.gpus) > 1:
            await self._world.large_may_start.wait()
        if self.gpus in self._world.fail_to_start:
            raise LaunchFailed(f"out of memory on {self.gpus}")

    async def stop(self) -> None:
        return


class World:
    """Four GPUs with an engine each; launcher and gateways in one. Answers may get lost on the way."""

    def __init__(self) -> None:
        self.large_may_start = asyncio.Event()
        self.large_may_start.set()
        self.fail_to_start: set[tuple[int, ...]] = set()
        self.fail_to_drain: set[str] = set()
        self.lost: list[Callable[[str, str], bool]] = []
        """The answer to the first question that one of them is for is lost, and it is done with."""
        self.asked: list[str] = []
        self.host = Host("h", 4, self, self)  # type: ignore[arg-type]
        self._routes = HostRoutes(self.host, None).app()

    async def launch(self, degree: int, gpus: Sequence[int]) -> ScriptedEngine:
        return ScriptedEngine(gpus, self)

    async def add(self, url: str, shim_url: str | None, degree: int) -> None:
        return

    async def drain(self, url: str, timeout_s: float) -> None:
        if url in self.fail_to_drain:
            raise DrainFailed(f"steps still run on {url}")

    async def leave(self, url: str) -> None:
        return

    async def close(self) -> None:
        return

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method, path = scope["method"], scope["path"]
        self.asked.append(f"{method} {path}")
        for one in self.lost:
            if one(method, path):
                self.lost.remove(one)

                async def nowhere(_: Any) -> None:
                    return

                await self._routes(scope, receive, nowhere)
                # The server closes the connection of an answer that is not whole.
                headers = [(b"content-length", b"1000")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                return
        await self._routes(scope, receive, send)

    def serving(self) -> list[tuple[int, ...]]:
        return sorted(one.gpus for one in self.host.status().engines if one.state is EngineState.READY)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    for gpu in range(4):
        world.host.start(None, [gpu])
    await world.until(lambda: len(world.serving()) == 4)
    yield world
    await world.host.close()


@pytest.fixture
async def hosts(world: World) -> AsyncIterator[Hosts]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with AppServer(world, listener), Hosts([url], None) as hosts:
        yield hosts
    listener.close()


async def planned(hosts: Hosts, *degrees: int) -> Reshaping:
    return reshape(await hosts.status(), degrees, floor=0.0)


async def carry_out(hosts: Hosts, plan: Reshaping, timeout_s: float = WAIT_S) -> None:
    await hosts.carry_out(plan, lambda move: None, timeout_s)


ONES = [(0,), (1,), (2,), (3,)]


async def test_answers_that_get_lost_cost_nothing_but_time(world: World, hosts: Hosts) -> None:
    plan = await planned(hosts, 4)
    world.lost = [
        lambda method, path: method == "DELETE",
        lambda method, path: method == "POST",
        lambda method, path: path == "/host/v1/status",
        lambda method, path: re.search(r"/engines/e\d+", path) is not None and method == "GET",
    ]
    world.large_may_start.clear()
    moving = asyncio.create_task(carry_out(hosts, plan))
    await world.until(lambda: not world.lost)
    world.large_may_start.set()
    await moving
    assert world.serving() == [(0, 1, 2, 3)]
    assert sum(one.startswith("POST") for one in world.asked) == 1, "it looked before it asked again"


async def test_one_that_does_not_drain_brings_the_others_back(world: World, hosts: Hosts) -> None:
    plan = await planned(hosts, 4)
    world.fail_to_drain = {"http://gpu2"}
    with pytest.raises(
        MoveFailed, match=r"engine e3 does not drain: steps still run on http://gpu2"
    ) as failed:
        await carry_out(hosts, plan)
    assert "; started again: degree 1 on GPUs 0, degree 1 on GPUs 1; not started again: " in str(failed.value)
    assert world.serving() == [(0,), (1,), (3,)]
    # What it takes to go on is said, and does it.
    with pytest.raises(ShapeError, match="heddle fleet stop e3 asks again, with --force"):
        await planned(hosts, 1, 1, 1, 1)
    await hosts.stop("h", "e3", force=True)
    await world.until(lambda: len(world.host.status().engines) == 3)
    await carry_out(hosts, await planned(hosts, 1, 1, 1, 1))
    assert world.serving() == ONES


async def test_a_start_that_takes_too_long_is_waited_for_before_the_old_ones_come_back(
    world: World, hosts: Hosts
) -> None:
    plan = await planned(hosts, 4)
    world.large_may_start.clear()
    world.fail_to_start = {(0, 1, 2, 3)}
    moving = asyncio.create_task(carry_out(hosts, plan, timeout_s=2.0))
    await world.until(lambda: "POST /host/v1/engines" in world.asked)
    begun = world.asked.index("POST /host/v1/engines")
    # It has given the move up, and sees that the GPUs are not free yet.
    await world.until(lambda: "GET /host/v1/status" in world.asked[begun:])
    world.large_may_start.set()
    with pytest.raises(
        MoveFailed, match=r"GPUs 0,1,2,3 not ready after 2 s; started again: degree 1 on GPUs 0,"
    ):
        await moving
    assert world.serving() == ONES


async def test_one_that_comes_up_late_keeps_the_gpus(world: World, hosts: Hosts) -> None:
    plan = await planned(hosts, 4)
    world.large_may_start.clear()
    moving = asyncio.create_task(carry_out(hosts, plan, timeout_s=0.5))
    await world.until(lambda: "POST /host/v1/engines" in world.asked)
    begun = world.asked.index("POST /host/v1/engines")
    await world.until(lambda: "GET /host/v1/status" in world.asked[begun:])
    world.large_may_start.set()
    with pytest.raises(MoveFailed, match="engine e5 has the GPUs: it serves by now"):
        await moving
    assert world.serving() == [(0, 1, 2, 3)]


async def test_an_old_one_that_does_not_come_back_does_not_keep_the_others_from_it(
    world: World, hosts: Hosts
) -> None:
    plan = await planned(hosts, 4)
    world.fail_to_start = {(0, 1, 2, 3), (1,)}
    with pytest.raises(MoveFailed, match=r"do not start: out of memory on \(0, 1, 2, 3\)") as failed:
        await carry_out(hosts, plan)
    assert re.search(
        r"not started again: degree 1 on GPUs 1 \(.*out of memory on \(1,\)\)$", str(failed.value)
    )
    assert world.serving() == [(0,), (2,), (3,)]


async def test_what_went_for_good_is_not_brought_back(world: World, hosts: Hosts) -> None:
    plan = await planned(hosts, 1)
    world.fail_to_drain = {"http://gpu2"}
    with pytest.raises(MoveFailed, match="nothing stood there"):
        await carry_out(hosts, plan)
    assert len(world.serving()) == 4 - 1 - [move.gpus for move in plan.moves].index((2,))


async def test_a_host_that_was_never_reached_is_an_error_of_the_host(world: World, hosts: Hosts) -> None:
    free = reshape({"h": HostStatus(name="h", gpus=4)}, [4], floor=0.0)
    await hosts.status()
    with pytest.raises(HostError, match=r"409: gpus: 0, 1, 2, 3 are in use"):
        await carry_out(hosts, free)
