"""A command of an operator is in Redis before it is answered, or the answer says that it is not."""

import asyncio
from itertools import count
from typing import Any

import pytest
from heddle_contracts.kept import KEPT_HEADER
from heddle_contracts.live_state import RegisteredWorker
from heddle_gateway import shared_fleet
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.outliving import KeptCommands
from heddle_gateway.settings import load_settings
from heddle_gateway.shared_fleet import SharedFleet
from heddle_gateway.write_rounds import SAVED_S, WriteRounds
from redis.asyncio import Redis

from tests.simulate.virtual_time import run_in_virtual_time

SLOW_MS = 400
"""A Redis takes so long for a write: what does not wait for it is seen to be ahead of it."""
URL = "http://127.0.0.1:9"

_names = count()


# ---------------------------------------------------------------------------------------- in simulated time


async def asked(method: str, path: str, *, status: int, saved: Any) -> tuple[list[str], dict[bytes, bytes]]:
    """What happens in which order, and the headers of the answer."""
    order: list[str] = []
    headers: dict[bytes, bytes] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        order.append("done")
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            order.append("answered")
            headers.update(message["headers"])

    async def noted() -> bool:
        found: bool = await saved()
        order.append("kept")
        return found

    layer = KeptCommands(app, noted)
    await layer({"type": "http", "method": method, "path": path}, lambda: None, send)  # type: ignore[arg-type,return-value]
    return order, headers


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/admin/v1/workers/3"),
        ("PUT", "/admin/v1/policy"),
        ("POST", "/admin/v1/plans/7/activate"),
        ("POST", "/admin/v1/rollouts/ro-1/finish"),
        ("POST", "/workers"),
        ("DELETE", "/workers/http://10.0.0.1:30000"),
        ("POST", "/remove_worker"),
        ("POST", "/pause_generation"),
        ("POST", "/continue_generation"),
    ],
)
async def test_a_command_is_answered_once_it_is_kept(method: str, path: str) -> None:
    order, headers = await asked(method, path, status=200, saved=yes)
    assert order == ["done", "kept", "answered"]
    assert headers == {b"x-own": b"1", KEPT_HEADER.encode(): b"redis"}


async def test_the_answer_says_where_a_command_is_not_kept() -> None:
    _, headers = await asked("DELETE", "/workers/3", status=202, saved=no)
    assert headers[KEPT_HEADER.encode()] == b"local"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v1/workers", 200),
        ("POST", "/workers/3/report", 204),
        ("DELETE", "/workers/3", 404),
        ("POST", "/finish_session", 200),
    ],
)
async def test_what_changes_nothing_waits_for_nothing(method: str, path: str, status: int) -> None:
    order, headers = await asked(method, path, status=status, saved=no)
    assert order == ["done", "answered"]
    assert KEPT_HEADER.encode() not in headers


def test_a_write_that_was_under_way_is_not_the_one_that_is_waited_for() -> None:
    async def main() -> None:
        rounds = WriteRounds()
        early = rounds.begin()
        waiting = asyncio.create_task(rounds.written(lambda: None))
        await asyncio.sleep(0.1)
        rounds.end(early, written=True)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        rounds.end(rounds.begin(), written=False)
        assert not await waiting

    run_in_virtual_time(main())


def test_a_store_that_says_nothing_is_waited_for_so_long_and_no_longer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert not await WriteRounds().written(lambda: None)
        assert loop.time() - began == pytest.approx(SAVED_S)

    run_in_virtual_time(main())


class Nobody:
    """Hears of workers, and minds none."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **said: None


async def test_a_worker_that_was_taken_out_is_not_taken_up_whatever_an_earlier_leader_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That leader could not reach Redis when it was told, or died before it had."""
    removed: set[str] = set()
    written = asyncio.Event()

    class Workers:
        def __init__(self, url: str, **said: Any) -> None:
            pass

        async def load(self) -> Any:
            return [(RegisteredWorker(number=1, url=URL), 60.0)], 0

        async def remove(self, epoch: int, urls: Any) -> None:
            removed.update(urls)

        async def put(self, epoch: int, workers: Any) -> int:
            return 0

        async def close(self) -> None:
            pass

    class Plan:
        def __init__(self, url: str, **said: Any) -> None:
            pass

        async def load(self) -> None:
            return None

        async def save(self, *said: Any) -> None:
            written.set()

        async def close(self) -> None:
            pass

    monkeypatch.setattr(shared_fleet, "RedisWorkers", Workers)
    monkeypatch.setattr(shared_fleet, "RedisPlan", Plan)
    fleet = Fleet(Nobody(), lambda worker_id: 0)  # type: ignore[arg-type]
    fleet.drain((await fleet.add(WorkerSpec(url=URL))).worker_id)
    keeper = Nobody()
    keeper.book = Nobody()  # type: ignore[attr-defined]
    keeper.book.last_version, keeper.book.in_force = 0, None  # type: ignore[attr-defined]
    shared = SharedFleet(
        load_settings(workers=[]),
        "redis://nowhere",
        fleet,
        keeper,  # type: ignore[arg-type]
        lambda: 2,
        lambda: False,
    )
    await shared.start()
    await written.wait()
    assert fleet.list() == []
    assert removed == {URL}
    await shared.close()
    await fleet.close()


# ------------------------------------------------------------------------------------------ on a real Redis


@pytest.fixture
async def redis(redis_server: Any) -> Any:
    redis = Redis.from_url(redis_server.url, decode_responses=True)
    yield redis
    await redis.aclose()


@pytest.mark.services
async def test_nothing_of_a_drained_worker_is_in_redis_when_the_operator_hears_of_it(
    new_gateway: Any, worker: Any, new_worker: Any, redis_server: Any, redis: Any, until: Any
) -> None:
    name = f"outliving-{next(_names)}"
    gateway = await new_gateway(worker, redis_url=redis_server.url, namespace=name)
    key = f"{{heddle:{name}}}:w:"
    for drain in ("admin", "registry", "legacy"):
        added = await new_worker()
        await redis.client_pause(SLOW_MS, all=False)
        shown = await gateway.client.post("/admin/v1/workers", json={"url": added.url})
        assert (shown.status_code, shown.headers[KEPT_HEADER]) == (201, "redis")
        assert await redis.exists(key + added.url), "an added worker is there"
        await redis.client_pause(SLOW_MS, all=False)
        gone = await {
            "admin": lambda shown=shown: gateway.client.delete(f"/admin/v1/workers/{shown.json()['id']}"),
            "registry": lambda added=added: gateway.client.delete(f"/workers/{added.url}"),
            "legacy": lambda added=added: gateway.client.post("/remove_worker", params={"url": added.url}),
        }[drain]()
        assert (gone.is_success, gone.headers[KEPT_HEADER]) == (True, "redis"), gone.text
        assert not await redis.exists(key + added.url), drain


@pytest.mark.services
async def test_commands_are_carried_out_while_redis_is_away_and_say_that_they_are_not_kept(
    new_gateway: Any, worker: Any, new_worker: Any, own_redis: Any, until: Any
) -> None:
    gateway = await new_gateway(worker, redis_url=own_redis.url, namespace="outliving-away")
    added = await new_worker()
    own_redis.stop()
    shown = await gateway.client.post("/admin/v1/workers", json={"url": added.url})
    assert (shown.status_code, shown.headers[KEPT_HEADER]) == (201, "local")
    policy = await gateway.client.put("/admin/v1/policy", json={"order": "fcfs"})
    assert (policy.json()["order"], policy.headers[KEPT_HEADER]) == ("fcfs", "local")
    own_redis.start()
    await until(lambda: gateway.parts.shared.mirror.stats().state == "following", "Redis to be back")

    async def kept() -> str:
        answer = await gateway.client.put("/admin/v1/policy", json={"order": "fcfs"})
        return str(answer.headers[KEPT_HEADER])

    async with asyncio.timeout(30):
        while await kept() != "redis":
            pass


@pytest.mark.services
async def test_without_a_redis_nothing_is_said_of_it(gateway: Any) -> None:
    answer = await gateway.client.put("/admin/v1/policy", json={})
    assert answer.status_code == 200
    assert KEPT_HEADER not in answer.headers
