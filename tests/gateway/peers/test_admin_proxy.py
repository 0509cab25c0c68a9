"""A follower asks the leader for an operator. The leader may hang, die in mid-answer, or lead no more."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
import uvicorn
from heddle_gateway.peers.admin_proxy import AdminProxy
from heddle_gateway.stored_answers import StoredAnswers

Until = Callable[..., Awaitable[None]]
WAIT_S = 10.0
# A path that the scripted server takes; the proxy minds none.
PATH = "/generate"


class QuietServer(uvicorn.Server):
    """The signals belong to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@dataclass
class Follower:
    """``leader`` is asked for everything."""

    http: httpx.AsyncClient
    leader: str | None


async def _nothing_here(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("asked here")


@pytest.fixture
async def follower(worker: Any, until: Until) -> AsyncIterator[Follower]:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as http:
        follower = Follower(http, worker.url)
        proxy = AdminProxy(_nothing_here, lambda: follower.leader)
        server = QuietServer(uvicorn.Config(proxy, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started, "the follower to listen")
        yield follower
        server.should_exit = server.force_exit = True
        await task
        await proxy.close()


async def test_events_whose_onlooker_leaves_are_not_asked_for_any_more(
    follower: Follower, worker: Any, until: Until
) -> None:
    async def silent_events(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.event("first")
        await request.client_left.wait()

    worker.script = silent_events
    async with follower.http.stream("POST", PATH) as response:
        async for _ in response.aiter_raw():
            break
    await until(lambda: worker.received[0].client_left.is_set(), "the leader to be left")


async def test_half_an_answer_is_no_answer(follower: Follower, worker: Any) -> None:
    async def dies(request: Any, line: Any) -> None:
        await line.send(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"items"'
        )
        line.reset()

    worker.script = dies
    response = await follower.http.post(PATH)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "leader_away")


async def test_a_leader_that_hangs_is_waited_for_as_long_as_it_leads(
    follower: Follower, worker: Any, until: Until
) -> None:
    async def hangs(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = hangs
    asking = asyncio.create_task(follower.http.post(PATH))
    await until(lambda: worker.received, "the leader to be asked")
    follower.leader = None
    response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (503, "leader_away")


async def test_an_answer_passes_as_it_is(follower: Follower, worker: Any) -> None:
    async def answers(request: Any, line: Any) -> None:
        await line.answer(418, b"\x1f\x8b raw", {"content-encoding": "identity", "x-more": "1"})

    worker.script = answers
    response = await follower.http.post(PATH, content=b"{}", headers={"authorization": "Bearer k"})
    assert (response.status_code, response.content, response.headers["x-more"]) == (418, b"\x1f\x8b raw", "1")
    [asked] = worker.received
    assert (asked.path, asked.body, asked.header("authorization")) == (PATH, b"{}", "Bearer k")


async def test_a_path_passes_as_it_came(follower: Follower, worker: Any) -> None:
    path = "/generate%3Fa%2Fb%20c%25%C3%A9"
    worker.answers[path] = {"it": "is"}
    response = await follower.http.post(path + "?x=%3F", content=b"{}")
    assert response.status_code == 404, "the scripted server minds the query"
    response = await follower.http.post(path, content=b"{}")
    assert (response.status_code, response.json()) == (200, {"it": "is"})


async def test_what_is_known_here_alone_is_answered_here() -> None:
    async def here(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    stored = StoredAnswers(cast(Any, None))
    stored.note("their-own-id", "resp_1", "http://w1")
    proxy = AdminProxy(here, lambda: "http://127.0.0.1:1", stored.is_known_here)
    transport = httpx.ASGITransport(proxy)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        for path in ("/v1/responses/their-own-id", "/v1/responses/their-own-id/input_items"):
            assert (await http.get(path)).text == path
        assert (await http.get("/v1/responses/another")).status_code == 503
    await proxy.close()
