"""Comments that keep a stream alive while its step waits, and the answers that get none."""

import asyncio
import json
from typing import Any


async def test_pings_keep_a_waiting_stream_alive_and_errors_become_events(
    new_gateway: Any, worker: Any
) -> None:
    go_on = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await go_on.wait()
        if len(worker.received) == 1:
            await line.stream_chat()
        else:
            await line.answer(400, {"object": "error", "message": "too long", "type": "x", "code": 400})

    async def ask() -> list[str]:
        """All lines of an answer whose worker goes on after the first comment."""
        go_on.clear()
        body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert await anext(lines) == ": ping"
            go_on.set()
            return [line async for line in lines if line]

    worker.script = script
    gateway = await new_gateway(worker, ping_period_s=0.02)
    good = await ask()
    assert good[-1] == "data: [DONE]"
    first_event = next(at for at, line in enumerate(good) if line.startswith("data:"))
    assert ": ping" not in good[first_event:]
    (event,) = [line for line in await ask() if line.startswith("data:")]
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "too long"
    records = await gateway.records(2)
    assert [record.outcome for record in records] == ["done", "client_error"]


async def test_plain_answers_are_never_pinged(new_gateway: Any, worker: Any) -> None:
    """Beside a stream of the same age that has been pinged several times."""
    go_on, waiting = asyncio.Event(), asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        waiting.set()
        await go_on.wait()
        await line.answer_chat()

    worker.script = script
    gateway = await new_gateway(worker, ping_period_s=0.02)
    plain = asyncio.create_task(gateway.chat())
    await waiting.wait()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as streamed:
        lines = streamed.aiter_lines()
        assert [line async for line in _some(lines, 6) if line] == [": ping"] * 3
    go_on.set()
    answer = await plain
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."
    assert b"ping" not in answer.content


async def _some(lines: Any, number: int) -> Any:
    for _ in range(number):
        yield await anext(lines)
