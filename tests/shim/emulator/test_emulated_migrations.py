"""A trajectory moved between two emulated workers by the shim's API, over real sockets."""

import asyncio
from typing import Any

import httpx
import pytest
from heddle_contracts.kv import Handshake, MigrationStatus
from heddle_shim.emulator.clock import VirtualClock
from heddle_shim.emulator.fleet_server import FleetServer
from heddle_shim.emulator.timing import TimingProfile
from heddle_shim.emulator.tokens import pack

from .conftest import Eventually, Serve

PATIENCE_S = 60.0


class Trajectory:
    """An agent that asks one worker after the other with a growing history."""

    def __init__(self, client: httpx.AsyncClient, words: int = 400) -> None:
        self._client = client
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": "ab " * words + "cd"}]
        self.rid = ""
        self.steps = 0

    async def step(self, url: str) -> dict[str, Any]:
        """One step on a worker; returns its usage."""
        self.rid = f"step{self.steps}"
        self.steps += 1
        body = {"model": "m", "messages": self._messages, "max_tokens": 40, "rid": self.rid}
        answer = (await self._client.post(f"{url}/v1/chat/completions", json=body)).json()
        self._messages.append(answer["choices"][0]["message"])
        self._messages.append({"role": "user", "content": "go on " * 20})
        usage: dict[str, Any] = answer["usage"]
        return usage


@pytest.fixture
async def client() -> Any:
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as found:
        yield found


async def move(
    client: httpx.AsyncClient, server: FleetServer, source: int, target: int | str, **request: Any
) -> MigrationStatus:
    """Moves KV to another worker, or to a URL, and waits for the end."""
    to = target if isinstance(target, str) else server.urls[target]
    body = {"id": "m-1", "trajectory": "t", "target": to, "deadline_s": PATIENCE_S, **request}
    url = f"{server.urls[source]}/shim/v1/migrations"
    started = await client.post(url, json=body)
    assert started.status_code == 202, started.text
    ended = await client.get(f"{url}/{body['id']}", params={"wait": PATIENCE_S})
    return MigrationStatus.model_validate_json(ended.content)


def held(server: FleetServer, worker: int) -> int:
    return server.workers[worker].engine.pool.tree.size


@pytest.mark.parametrize("degrees", [(1, 1), (1, 4), (4, 2), (16, 1)])
@pytest.mark.parametrize(("page_size", "moved_page"), [(1, 64), (16, 64), (1, 256)])
async def test_a_moved_trajectory_is_cached_at_the_target_and_may_go_at_the_source(
    degrees: tuple[int, int], page_size: int, moved_page: int, serve: Serve, client: httpx.AsyncClient
) -> None:
    server = await serve(degrees, kv_tokens=20_000, engine={"page_size": page_size}, moved_page=moved_page)
    trajectory = Trajectory(client)
    for _ in range(3):
        await trajectory.step(server.urls[0])

    status = await move(client, server, 0, 1, rid=trajectory.rid)

    assert status.state == "landed", status.detail
    assert status.tokens_landed >= 512
    assert status.tokens_landed % moved_page == 0
    assert held(server, 0) == server.workers[0].engine.pool.tree.evictable > status.tokens_landed
    usage = await trajectory.step(server.urls[1])
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert status.tokens_landed <= cached < usage["prompt_tokens"]
    for worker in server.workers:
        assert worker.engine.audit() == []
        assert worker.engine.pool.promised == 0
        assert worker.engine.pool.used == 0


async def test_it_moves_by_its_tokens_too_and_back_again(serve: Serve, client: httpx.AsyncClient) -> None:
    server = await serve((1, 2), kv_tokens=20_000)
    tokens = list(range(100, 400))
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}
    await client.post(f"{server.urls[0]}/generate", json=body)

    there = await move(client, server, 0, 1, tokens=tokens)
    back = await move(client, server, 1, 0, tokens=tokens, id="m-2")

    assert (there.tokens_landed, back.tokens_landed) == (256, 256)
    assert (there.pages_moved, back.pages_moved) == (4, 0)
    cached = [
        (await client.post(f"{url}/generate", json=body)).json()["meta_info"]["cached_tokens"]
        for url in server.urls
    ]
    assert cached == [299, 256]


async def test_siblings_move_one_after_the_other_and_only_what_the_target_lacks(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    server = await serve((1, 1), kv_tokens=20_000)
    shared = list(range(100, 228))
    first, second = shared + list(range(1000, 1192)), shared + list(range(2000, 2192))
    here, there = (worker.engine.pool.tree for worker in server.workers)
    for tokens in (first, second):
        here.insert(pack(tokens))

    one = await move(client, server, 0, 1, tokens=first)
    two = await move(client, server, 0, 1, tokens=second, id="m-2")
    again = await move(client, server, 0, 1, tokens=second, id="m-3")

    assert [status.state for status in (one, two, again)] == ["landed"] * 3
    assert [status.pages_moved for status in (one, two, again)] == [5, 3, 0]
    assert [status.pages_present for status in (one, two, again)] == [0, 2, 5]
    for tokens in (first, second):
        assert (here.match(pack(tokens))[0], there.match(pack(tokens))[0]) == (320, 320)
    for worker in server.workers:
        assert (worker.engine.audit(), worker.engine.pool.used, worker.engine.pool.promised) == ([], 0, 0)


async def test_a_move_takes_the_time_of_real_kv_on_the_profiles_link(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    """Simulated seconds: 256 tokens at 100 tokens a second, whatever the machine needs for the bytes."""
    profile = TimingProfile(kv_token_bytes=1000.0, transfer_bytes_s=100_000.0)
    server = await serve((1, 1), kv_tokens=20_000, profile=profile, speed=100.0)
    clock = server.workers[0].driver.clock
    tokens = list(range(100, 400))
    await client.post(
        f"{server.urls[0]}/generate", json={"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}
    )

    began = clock.now()
    status = await move(client, server, 0, 1, tokens=tokens)

    assert status.state == "landed"
    assert clock.now() - began >= 2.56
    assert status.expected_s == pytest.approx(0.0256)


async def test_a_slow_link_declines_what_re_prefill_does_sooner(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    profile = TimingProfile(kv_token_bytes=1000.0, transfer_bytes_s=100_000.0)
    server = await serve((1, 1), kv_tokens=20_000, profile=profile, speed=1.0)
    tokens = list(range(100, 400))
    await client.post(
        f"{server.urls[0]}/generate", json={"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}
    )

    status = await move(client, server, 0, 1, tokens=tokens, worth_s=0.01)

    assert (status.state, status.fault) == ("declined", "not_worth_it")
    assert held(server, 0) == 300
    assert held(server, 1) == 0


async def test_a_full_target_refuses_and_what_runs_there_goes_on(
    serve: Serve, client: httpx.AsyncClient, eventually: Eventually
) -> None:
    clock = VirtualClock()
    server = await serve((1, 1), kv_tokens=1000, clock=clock)
    tokens = list(range(100, 900))
    server.workers[0].engine.pool.tree.insert(pack(tokens))
    engine = server.workers[1].engine
    body = {"input_ids": list(range(1000, 1300)), "sampling_params": {"max_new_tokens": 600}}
    running = asyncio.create_task(client.post(f"{server.urls[1]}/generate", json=body))
    await eventually(lambda: engine.running_count() == 1)
    clock.advance(1.0)
    assert len(engine.running) == 1

    status = await move(client, server, 0, 1, tokens=tokens)

    assert (status.state, status.fault) == ("failed", "target_full")
    assert held(server, 0) == 800
    clock.advance(1000.0)
    assert (await running).json()["meta_info"]["completion_tokens"] == 600
    assert engine.totals.retractions == 0


async def test_what_is_not_there_and_what_cannot_move_say_why(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    server = await serve((1, 3, 1), kv_tokens=20_000)
    still = await serve((1,), kv_tokens=20_000, profile=TimingProfile(transfer_bytes_s=0.0))
    trajectory = Trajectory(client)
    await trajectory.step(server.urls[0])

    unknown = await move(client, server, 0, 2, rid="nobody")
    hashes = await move(client, server, 0, 2, page_hashes=["0" * 64], id="m-2")
    odd = await move(client, server, 0, 1, rid=trajectory.rid, id="m-3")
    immobile = await move(client, server, 0, still.urls[0], rid=trajectory.rid, id="m-4")

    assert (unknown.fault, hashes.fault) == ("nothing_to_move", "nothing_to_move")
    assert unknown.detail.startswith("rid")
    assert (odd.fault, immobile.fault) == ("engine", "engine")
    assert "MP degree 3" in odd.detail
    assert "transfer_bytes_s" in immobile.detail
    assert held(server, 0) > 0


async def test_the_worker_announces_its_shim(serve: Serve, client: httpx.AsyncClient) -> None:
    server = await serve((2,))

    info = (await client.get(f"{server.urls[0]}/server_info")).json()
    handshake = Handshake.model_validate_json(
        (await client.get(f"{info['heddle_shim_url']}/shim/v1/handshake")).content
    )

    assert info["heddle_shim_url"] == server.urls[0]
    assert handshake.engine.emulated
    assert handshake.engine.tp_size == 2
    assert handshake.namespace is not None
    assert handshake.namespace.layout.page_size == 64
    assert handshake.transfer_bytes_s is not None
    assert handshake.cannot_migrate is None
