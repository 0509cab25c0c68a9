"""A server that stops reading a connection does not hear that it was closed.

uvicorn stops at large bodies and at pipelined requests; steps must be aborted all the same.
"""

from typing import Any

import pytest


async def never_answer(request: Any, line: Any) -> None:
    await request.client_left.wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bytes_of_prompt", [100, 70_000, 3_000_000])
async def test_a_hang_up_after_a_large_body_stops_the_engine(
    new_gateway: Any,
    worker: Any,
    until: Any,
    connect: Any,
    make_request: Any,
    chat_body: Any,
    bytes_of_prompt: int,
    stream: bool,
) -> None:
    gateway = await new_gateway(worker, policy={"admission": "unlimited"})
    worker.script = never_answer
    line = await connect(gateway.url)
    await line.send(make_request(chat_body("x" * bytes_of_prompt, stream=stream)))
    await until(lambda: worker.received, "the request at the worker")
    await line.finish()
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    await until(gateway.at_rest, "the step to end")
    assert worker.aborts == [worker.received[0].json()["rid"]]
    (record,) = await gateway.records(1)
    assert record.outcome == "aborted"


@pytest.mark.parametrize("behind", ["a whole request", "the head of a request", "three requests"])
async def test_a_hang_up_behind_pipelined_requests_stops_the_engine(
    gateway: Any, worker: Any, until: Any, connect: Any, make_request: Any, chat_body: Any, behind: str
) -> None:
    worker.script = never_answer
    line = await connect(gateway.url)
    whole = make_request(chat_body())
    more = {"a whole request": whole, "the head of a request": whole[:-20]}.get(behind, whole * 3)
    await line.send(whole)
    await until(lambda: worker.received, "the request at the worker")
    await line.send(more)
    await line.finish()
    await until(worker.received[0].client_left.is_set, "the connection to the worker to be closed")
    await until(gateway.at_rest, "the step to end")
    assert len(worker.received) == 1, "a request of a client that left was sent on"


async def test_pipelined_requests_are_answered_in_their_order(
    gateway: Any, worker: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    async def echo(request: Any, line: Any) -> None:
        await line.answer_chat(request.json()["messages"][0]["content"])

    worker.script = echo
    line = await connect(gateway.url)
    asked = [f"number {number}" for number in range(12)]
    await line.send(b"".join(make_request(chat_body(text)) for text in asked))
    for text in asked:
        status, _, body = await line.answer()
        assert status == 200
        assert text.encode() in body
