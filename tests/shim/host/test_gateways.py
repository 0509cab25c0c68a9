"""What a host asks of a gateway, over a real socket: faults that pass are waited out, others said at once."""

import socket
from collections.abc import AsyncIterator

import pytest
from heddle_shim.host.gateways import DrainFailed, Gateways
from heddle_shim.http_server import AppServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ENGINE = "http://node1:30000"
PATIENT_S, QUICK_S = 60.0, 0.01


class ScriptedGateway:
    """Has one worker. ``faults`` are given as answers first, one a question."""

    def __init__(self) -> None:
        self.state = "active"
        self.is_there = True
        self.faults: list[Response] = []
        self.looks_until_gone = 2
        self.deleted: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._listener = listener
        routes = [
            Route("/admin/v1/workers", self._list),
            Route("/admin/v1/workers/{id}", self._drain, methods=["DELETE"]),
        ]
        self.server = AppServer(Starlette(routes=routes), listener)

    def close(self) -> None:
        self._listener.close()

    async def _list(self, _: Request) -> Response:
        if self.faults:
            return self.faults.pop(0)
        if self.state == "draining":
            self.looks_until_gone -= 1
            self.is_there = self.looks_until_gone > 0
        # Gateways write URLs in lower case.
        worker = {"id": 7, "url": ENGINE, "state": self.state, "last_error": "refused"}
        return JSONResponse({"items": [worker] if self.is_there else []})

    async def _drain(self, request: Request) -> Response:
        if self.faults:
            return self.faults.pop(0)
        self.deleted.append(request.path_params["id"])
        self.state = "draining"
        return JSONResponse({}, 202)


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    async with gateway.server:
        yield gateway
    gateway.close()


@pytest.fixture
async def gateways(gateway: ScriptedGateway) -> AsyncIterator[Gateways]:
    gateways = Gateways([gateway.url], "key")
    yield gateways
    await gateways.close()


async def test_a_gateway_without_a_leader_for_a_moment_does_not_end_a_drain(
    gateway: ScriptedGateway, gateways: Gateways
) -> None:
    # One of them for the question to drain, the other while its steps end.
    gateway.faults = [Response(status_code=503), Response(status_code=502)]
    await gateways.drain("http://Node1:30000/", PATIENT_S)
    assert gateway.deleted == ["7"]
    assert not gateway.is_there


async def test_a_gateway_that_stays_away_and_steps_that_do_not_end_fail_a_drain_in_time(
    gateway: ScriptedGateway, gateways: Gateways
) -> None:
    gateway.looks_until_gone = 1_000_000
    with pytest.raises(DrainFailed, match=r"steps still run on http://node1:30000 after 0\.01 s"):
        await gateways.drain(ENGINE, QUICK_S)
    nobody = Gateways(["http://127.0.0.1:1"], None)
    with pytest.raises(DrainFailed, match="cannot be asked"):
        await nobody.drain(ENGINE, QUICK_S)
    await nobody.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Response(status_code=401), "refuses"),
        (JSONResponse({"workers": []}), "does not answer like a gateway"),
        (Response("<html>"), "does not answer like a gateway"),
    ],
)
async def test_what_will_not_pass_is_said_at_once(
    gateway: ScriptedGateway, gateways: Gateways, answer: Response, said: str
) -> None:
    gateway.faults = [answer]
    with pytest.raises(DrainFailed, match=said):
        await gateways.drain(ENGINE, PATIENT_S)
    gateway.faults = [answer]
    with pytest.raises(DrainFailed, match=said):
        await gateways.in_service(ENGINE, PATIENT_S)


async def test_an_engine_is_in_service_once_steps_can_go_there(
    gateway: ScriptedGateway, gateways: Gateways
) -> None:
    waits: list[str] = []

    def waits_for(why: str) -> None:
        waits.append(why)
        gateway.state = "active"

    gateway.faults = [Response(status_code=503)]
    await gateways.in_service(ENGINE, PATIENT_S, waits.append)
    assert "503" in waits[0]
    gateway.state = "probing"
    await gateways.in_service(ENGINE, PATIENT_S, waits_for)
    assert waits[-1].endswith("has http://node1:30000 as probing (refused)")
    gateway.is_there = False
    with pytest.raises(DrainFailed, match="does not know http://node1:30000"):
        await gateways.in_service(ENGINE, QUICK_S)


async def test_a_gateway_is_told_once_of_an_engine_that_ends_and_nothing_is_waited_for(
    gateway: ScriptedGateway,
) -> None:
    gateway.looks_until_gone = 1_000_000
    gateways = Gateways(["http://127.0.0.1:1", gateway.url], None)
    await gateways.leave(ENGINE)
    assert gateway.deleted == ["7"]
    gateway.faults = [Response(status_code=401)]
    await gateways.leave(ENGINE)
    await gateways.close()
