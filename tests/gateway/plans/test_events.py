"""The stream of decisions: what it shows, and that onlookers cost nobody anything."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from heddle_contracts.planning import EventKind
from heddle_gateway.live.decision_feed import CAPACITY, MOST_ONLOOKERS, DecisionFeed


async def read_until(lines: Any, kinds: set[str]) -> list[dict[str, Any]]:
    """Events until one of each kind was there."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        async for line in lines:
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if kinds <= {one.get("kind") for one in found}:
                    return found
    raise AssertionError(f"the stream ended with {found}")


async def test_a_step_is_seen_from_dispatch_to_expiry(gateway: Any) -> None:
    async with gateway.client.stream("GET", "/admin/v1/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        await anext(lines)
        await gateway.chat(headers={"x-heddle-trajectory-id": "a", "x-heddle-final": "true"})
        await gateway.client.post("/admin/v1/trajectories/a/finish")
        events = await read_until(lines, {"dispatch", "expire"})
    dispatch = next(one for one in events if one["kind"] == "dispatch")
    assert dispatch["trajectory_id"] == "a"
    assert dispatch["worker"].startswith("127.0.0.1:")
    assert dispatch["facts"]["attempt"] == 1
    assert {"level", "priority", "reason"} <= dispatch["facts"].keys()


async def test_kinds_can_be_chosen(gateway: Any) -> None:
    async with gateway.client.stream("GET", "/admin/v1/events?kind=expire") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await gateway.chat(headers={"x-heddle-trajectory-id": "a"})
        await gateway.client.post("/admin/v1/trajectories/a/finish")
        events = await read_until(lines, {"expire"})
    assert [one["kind"] for one in events] == ["expire"]


async def test_an_onlooker_that_leaves_is_forgotten(gateway: Any, until: Any) -> None:
    feed = gateway.parts.driver.feed
    async with gateway.client.stream("GET", "/admin/v1/events") as stream:
        await anext(stream.aiter_lines())
        assert feed.watched
    for _ in range(2):
        await gateway.chat()
    await until(lambda: not feed.watched, "the stream to be closed")


async def test_a_slow_onlooker_misses_the_oldest_and_is_told() -> None:
    feed = DecisionFeed()
    with feed.subscription() as subscription:
        for number in range(CAPACITY + 5):
            feed.publish(EventKind.EXPIRE, number=number)
        events = await subscription.take(1.0)
        assert events is not None
        assert (len(events), subscription.missed) == (CAPACITY, 5)
        assert events[0].facts == {"number": 5}
        feed.close()
        assert await subscription.take(1.0) is None
    assert not feed.watched


async def test_there_is_a_bound_on_onlookers(gateway: Any) -> None:
    feed = gateway.parts.driver.feed
    held = [feed.subscription() for _ in range(MOST_ONLOOKERS)]
    for one in held:
        one.__enter__()
    assert (await gateway.client.get("/admin/v1/events")).status_code == 429
    for one in held:
        one.__exit__(None, None, None)


def test_a_gateway_that_ends_ends_the_streams_of_its_onlookers(tmp_path: Path) -> None:
    """Well before the grace that running steps have."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "heddle_cli", "gateway", "--port", str(port)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    settings = {"HEDDLE_DATABASE": str(tmp_path / "history.db"), "HEDDLE_SHUTDOWN_GRACE_S": "3600"}
    process = subprocess.Popen(command, env=kept | settings, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as client:
            while process.poll() is None:
                try:
                    client.get("/health")
                    break
                except httpx.TransportError:
                    continue
            with client.stream("GET", "/admin/v1/events") as stream:
                lines = stream.iter_lines()
                assert next(lines) == ": decisions of the core"
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line.strip(": ")] == []
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.wait()
