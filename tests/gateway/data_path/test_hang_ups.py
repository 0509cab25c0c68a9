"""A client may leave at any moment; the engine is told, and the step ends exactly once, as aborted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Until = Callable[..., Awaitable[None]]


class RawClient:
    """A client whose connection is cut at will."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def post(cls, gateway: Any, path: str, **body: Any) -> "RawClient":
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        return cls(reader, writer)

    @classmethod
    async def chat(cls, gateway: Any, trajectory: str = "t", **more: Any) -> "RawClient":
        messages = [{"role": "user", "content": "hi"}]
        return await cls.post(
            gateway, f"/t/{trajectory}/v1/chat/completions", model="test-model", messages=messages, **more
        )

    def leave(self) -> None:
        self.writer.transport.abort()


async def never_answer(request: Any, line: Any) -> None:
    await request.client_left.wait()


async def stream_for_ever(request: Any, line: Any) -> None:
    await line.begin_stream()
    while not request.client_left.is_set():
        await line.chat_event({"content": "x"})
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_byte_stops_the_engine(
    gateway: Any, worker: Any, until: Until, stream: bool
) -> None:
    worker.script = never_answer
    client = await RawClient.chat(gateway, stream=stream)
    await until(lambda: worker.received, "the request at the worker")
    client.leave()
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    await until(lambda: worker.aborts, "an abort")
    await until(gateway.at_rest, "the step to end")
    assert worker.aborts == [worker.received[0].json()["rid"]]
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status, record.attempts) == ("aborted", None, 1)


async def test_leaving_in_mid_stream_stops_the_engine_and_keeps_what_was_counted(
    gateway: Any, worker: Any, until: Until
) -> None:
    worker.script = stream_for_ever
    client = await RawClient.chat(gateway, stream=True)
    await client.reader.readuntil(b'"content": "x"')
    client.leave()
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    await until(gateway.at_rest, "the step to end")
    assert worker.aborts == [worker.received[0].json()["rid"]]
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status) == ("aborted", 200)
    assert record.output_tokens >= 1
    assert not record.usage_known


async def test_leaving_while_held_never_reaches_a_worker(new_gateway: Any, worker: Any, until: Until) -> None:
    worker.features["max_running_requests"] = 1
    worker.script = never_answer
    gateway = await new_gateway(worker, policy={"order": "fcfs", "placement": "sticky", "admission": "slots"})
    first = await RawClient.chat(gateway, "first")
    await until(lambda: len(worker.received) == 1, "the first step at the worker")
    second = await RawClient.chat(gateway, "second")
    await until(lambda: gateway.parts.driver.stats()["steps_live"] == 2, "the second step to be held")
    second.leave()
    await until(lambda: gateway.parts.driver.stats()["steps_live"] == 1, "the held step to end")
    assert len(worker.received) == 1
    first.leave()
    await until(gateway.at_rest, "all steps to end")
    records = await gateway.records(2)
    assert {record.trajectory_id: record.attempts for record in records} == {"first": 1, "second": 0}
    assert all(record.outcome == "aborted" for record in records)


async def test_the_next_step_of_the_trajectory_waits_for_the_abort(
    gateway: Any, worker: Any, until: Until
) -> None:
    worker.script = never_answer
    worker.abort_gate = asyncio.Event()
    client = await RawClient.chat(gateway, "t")
    await until(lambda: worker.received, "the first step at the worker")
    client.leave()
    await until(lambda: worker.aborts, "the abort")
    worker.script = None
    other = await gateway.chat(path="/t/other/v1/chat/completions")
    assert other.status_code == 200
    following = asyncio.create_task(gateway.chat("again", path="/t/t/v1/chat/completions"))
    await until(lambda: gateway.parts.driver.stats()["steps_live"] == 2, "the next step to be held")
    assert len(worker.received) == 2, "the next step was sent while the abort was still open"
    worker.abort_gate.set()
    assert (await following).status_code == 200


async def test_an_abort_that_is_never_answered_holds_nothing_up_for_long(
    gateway: Any, worker: Any, until: Until
) -> None:
    worker.script = never_answer
    worker.abort_gate = asyncio.Event()
    client = await RawClient.chat(gateway)
    await until(lambda: worker.received, "the step at the worker")
    client.leave()
    await until(gateway.at_rest, "the step to end although the abort hangs")
    (record,) = await gateway.records(1)
    assert record.outcome == "aborted"


async def test_an_engine_without_abort_is_stopped_by_the_closed_connection(
    new_gateway: Any, new_worker: Any, until: Until
) -> None:
    worker = await new_worker()
    worker.kind = "openai"
    worker.script = never_answer
    gateway = await new_gateway(worker)
    client = await RawClient.chat(gateway)
    await until(lambda: worker.received, "the request at the worker")
    client.leave()
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    await until(gateway.at_rest, "the step to end")
    assert worker.aborts == []


async def test_leaving_in_the_middle_of_the_own_body_makes_no_step(
    gateway: Any, worker: Any, until: Until
) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    assert (await gateway.chat()).status_code == 200
    assert gateway.parts.driver.stats()["steps_arrived_total"] == 1


async def test_a_storm_of_hang_ups_leaves_nothing_behind(gateway: Any, worker: Any, until: Until) -> None:
    """Started = done + aborted, at the engine, in the core and in the history; nothing in flight."""
    answered = 0

    async def script(request: Any, line: Any) -> None:
        nonlocal answered
        if int(request.json()["messages"][0]["content"]) % 3:
            await line.answer_chat()
            answered += 1
        else:
            await request.client_left.wait()

    worker.script = script

    async def one(number: int) -> None:
        body = {"model": "test-model", "messages": [{"role": "user", "content": str(number)}]}
        client = await RawClient.post(gateway, f"/t/{number}/v1/chat/completions", **body)
        if number % 3:
            assert b"200 OK" in await client.reader.readline()
        else:
            await until(
                lambda: any(r.json()["messages"] == body["messages"] for r in worker.received),
                "it at the worker",
            )
        client.leave()

    await asyncio.gather(*(one(number) for number in range(60)))
    await until(gateway.at_rest, "all steps to end")
    records = await gateway.records(60)
    outcomes = [record.outcome for record in records]
    assert (outcomes.count("done"), outcomes.count("aborted")) == (40, 20)
    assert answered == 40
    aborted = {r.json()["rid"] for r in worker.received if int(r.json()["messages"][0]["content"]) % 3 == 0}
    assert set(worker.aborts) == aborted
    stats = gateway.parts.driver.stats()
    assert (stats["steps_done_total"], stats["steps_aborted_total"]) == (40, 20)
    assert gateway.parts.upstream.stats()["connections_busy"] == 0
