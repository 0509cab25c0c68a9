"""One host over HTTP, with engines that are told how to behave, and a gateway that is told what runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest
from heddle_contracts.fleet import HostStatus
from heddle_planner.fleet.shape import reshape
from heddle_shim.host.gateways import DrainFailed
from heddle_shim.host.host import Host
from heddle_shim.host.launching import LaunchFailed
from heddle_shim.host.routes import HostRoutes

WAIT_S = 30.0


class ScriptedEngine:
    shim_url = None

    def __init__(self, url: str, launcher: "ScriptedLauncher") -> None:
        self.url = url
        self.registers_itself = launcher.register_themselves
        self._launcher = launcher
        self.stopped = False

    async def ready(self) -> None:
        await self._launcher.may_start.wait()
        if self._launcher.fails:
            raise LaunchFailed("out of memory")

    async def stop(self) -> None:
        self.stopped = True


class ScriptedLauncher:
    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.fails = False
        self.register_themselves = False
        self.engines: list[ScriptedEngine] = []

    async def launch(self, degree: int, gpus: Sequence[int]) -> ScriptedEngine:
        self.engines.append(ScriptedEngine(f"http://gpu{gpus[0]}", self))
        return self.engines[-1]


class ScriptedGateways:
    def __init__(self) -> None:
        self.workers: dict[str, int] = {}
        self.at_rest = asyncio.Event()
        self.at_rest.set()
        self.away = False
        self.has_it = asyncio.Event()
        self.refuses = False
        self.left: list[str] = []
        self.engines: list[ScriptedEngine] = []

    async def add(self, url: str, shim_url: str | None, degree: int) -> None:
        self.workers[url] = degree

    async def in_service(self, url: str, timeout_s: float, waits_for: Callable[[str], None]) -> None:
        waits_for(f"gateway http://g does not know {url}")
        await self.has_it.wait()
        if self.refuses:
            raise DrainFailed("gateway http://g refuses: 401")

    async def drain(self, url: str, timeout_s: float) -> None:
        if self.away:
            raise DrainFailed("gateway http://g cannot be asked")
        del self.workers[url]
        await self.at_rest.wait()

    async def leave(self, url: str) -> None:
        assert not any(engine.stopped for engine in self.engines if engine.url == url)
        self.left.append(url)

    async def close(self) -> None:
        self.workers.clear()


class Parts:
    def __init__(self) -> None:
        self.launcher = ScriptedLauncher()
        self.gateways = ScriptedGateways()
        self.gateways.engines = self.launcher.engines
        self.host = Host("node", 8, self.launcher, self.gateways)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(HostRoutes(self.host, "secret").app())
        self.http = httpx.AsyncClient(
            base_url="http://host/host/v1", transport=transport, headers={"authorization": "Bearer secret"}
        )

    async def engines(self) -> list[Any]:
        found: list[Any] = (await self.http.get("/status")).raise_for_status().json()["engines"]
        return found

    async def until(self, holds: Callable[[list[Any]], bool]) -> list[Any]:
        async with asyncio.timeout(WAIT_S):
            while not holds(engines := await self.engines()):  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.01)
        return engines


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    parts = Parts()
    yield parts
    await parts.host.close()
    await parts.http.aclose()
    assert all(engine.stopped for engine in parts.launcher.engines)


def all_ready(engines: list[Any]) -> bool:
    return bool(engines) and all(engine["state"] == "ready" for engine in engines)


async def test_an_engine_is_launched_registered_drained_and_ended(parts: Parts) -> None:
    started = (await parts.http.post("/engines", json={"degree": 4})).raise_for_status()
    assert started.status_code == 202
    assert started.json()["gpus"] == [0, 1, 2, 3]
    [engine] = await parts.until(all_ready)
    assert parts.gateways.workers == {"http://gpu0": 4}
    assert engine["started_in_s"] >= 0
    parts.gateways.at_rest.clear()
    assert (await parts.http.delete(f"/engines/{engine['id']}")).json()["state"] == "draining"
    # Steps run: it lives, and its GPUs are taken.
    assert not parts.launcher.engines[0].stopped
    assert (await parts.http.post("/engines", json={"gpus": [3]})).status_code == 409
    parts.gateways.at_rest.set()
    await parts.until(lambda engines: engines == [])
    assert parts.launcher.engines[0].stopped


async def test_one_that_does_not_start_gives_its_gpus_back_and_says_why(parts: Parts) -> None:
    parts.launcher.fails = True
    await parts.http.post("/engines", json={"gpus": [6, 7]})
    [engine] = await parts.until(lambda engines: engines[0]["state"] == "failed")
    assert engine["detail"] == "out of memory"
    assert parts.gateways.workers == {}
    # Nothing of it is in the way of another shape.
    found = HostStatus.model_validate((await parts.http.get("/status")).json())
    assert [move.kind for move in reshape({"node": found}, [8], floor=0.0).moves] == ["start"]
    parts.launcher.fails = False
    await parts.http.post("/engines", json={"gpus": [7]})
    [again] = await parts.until(all_ready)
    assert again["gpus"] == [7]


async def test_one_whose_shim_registers_it_is_ready_once_the_gateways_have_it(parts: Parts) -> None:
    parts.launcher.register_themselves = True
    await parts.http.post("/engines", json={"degree": 1})
    [engine] = await parts.until(lambda engines: bool(engines[0]["detail"]))
    assert (engine["state"], engine["detail"]) == ("starting", "gateway http://g does not know http://gpu0")
    parts.gateways.has_it.set()
    [engine] = await parts.until(all_ready)
    assert engine["detail"] == ""
    parts.gateways.refuses = True
    await parts.http.post("/engines", json={"gpus": [1]})
    engines = await parts.until(lambda engines: engines[1]["state"] == "failed")
    assert (engines[1]["detail"], engines[1]["url"]) == ("gateway http://g refuses: 401", None)
    assert parts.launcher.engines[1].stopped


async def test_while_a_gateway_is_away_nothing_is_stopped_unless_forced(parts: Parts) -> None:
    await parts.http.post("/engines", json={"degree": 1})
    [engine] = await parts.until(all_ready)
    parts.gateways.away = True
    await parts.http.delete(f"/engines/{engine['id']}")
    [failed] = await parts.until(lambda engines: engines[0]["state"] == "failed")
    assert "cannot be asked" in failed["detail"]
    assert not parts.launcher.engines[0].stopped
    await parts.http.delete(f"/engines/{engine['id']}", params={"force": "true"})
    await parts.until(lambda engines: engines == [])
    assert parts.launcher.engines[0].stopped


async def test_what_cannot_be_is_refused_with_the_field(parts: Parts) -> None:
    parts.launcher.may_start.clear()
    first = (await parts.http.post("/engines", json={"degree": 8})).json()
    for body, status, field in (
        ({"degree": 0}, 422, "degree"),
        ({"degree": 9}, 409, "degree"),
        ({"gpus": [0]}, 409, "gpus"),
        ({"gpus": [], "degree": 1}, 422, "gpus"),
        ({"gpu": [1]}, 422, "gpu"),
        ({}, 409, "degree"),
        ({"degree": 2, "gpus": [1]}, 409, "gpus"),
    ):
        answer = await parts.http.post("/engines", json=body)
        assert (answer.status_code, answer.json()["field"]) == (status, field), body
    assert (await parts.http.post("/engines", content=b"{")).status_code == 422
    assert (await parts.http.delete(f"/engines/{first['id']}")).status_code == 409, "it is starting"
    assert (await parts.http.delete("/engines/e99")).status_code == 404
    assert (await parts.http.get("/status", headers={"authorization": "Bearer x"})).status_code == 401
    parts.launcher.may_start.set()
    await parts.until(all_ready)


@pytest.mark.parametrize("themselves", [False, True])
async def test_a_host_that_ends_tells_the_gateways_of_engines_that_do_not_tell_themselves(
    parts: Parts, themselves: bool
) -> None:
    parts.launcher.register_themselves = themselves
    parts.gateways.has_it.set()
    for gpu in (0, 1):
        await parts.http.post("/engines", json={"gpus": [gpu]})
    await parts.until(all_ready)
    await parts.host.close()
    assert parts.gateways.left == ([] if themselves else ["http://gpu0", "http://gpu1"])
    assert [engine.stopped for engine in parts.launcher.engines] == [True, True]
