"""When the caller has to come back: it is told when, whoever said so; and it never meets a 404 in between."""

import asyncio
from typing import Any

import pytest


@pytest.mark.parametrize(("status", "told", "heard"), [(429, "30", 30), (503, "7", 7), (429, "9" * 50, 120)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_workers_own_retry_after_reaches_the_caller(
    gateway: Any, worker: Any, status: int, told: str, heard: int, stream: bool
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(status, {"error": {"message": "too many"}}, {"retry-after": told})

    worker.script = script
    found = await gateway.chat(stream=stream)
    assert found.status_code in (429, 503)
    assert int(found.headers["retry-after"]) == heard
    assert "too many" in found.json()["error"]["message"]


@pytest.mark.parametrize("told", [None, "Wed, 21 Oct 2026 07:28:00 GMT", "-5", "soon"])
async def test_without_a_number_from_the_worker_the_gateway_names_one(
    gateway: Any, worker: Any, told: str | None
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(429, {"error": {"message": "too many"}}, {"retry-after": told} if told else {})

    worker.script = script
    found = await gateway.chat()
    assert 1 <= int(found.headers["retry-after"]) <= 120


async def test_while_the_only_worker_drains_steps_are_served_or_told_to_come_back(
    new_gateway: Any, worker: Any, until: Any
) -> None:
    """A rolling update takes the old worker out before the new one is there."""
    hold = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        if request.json()["messages"][0]["content"] == "long":
            await hold.wait()
        await line.answer_chat()

    worker.script = script
    gateway = await new_gateway(worker)
    running = asyncio.create_task(gateway.chat("long"))
    await until(lambda: worker.received, "the long step at the worker")
    (listed,) = (await gateway.client.get("/admin/v1/workers")).json()["items"]
    await gateway.client.delete(f"/admin/v1/workers/{listed['id']}")
    for number in range(5):
        found = await gateway.chat(f"task {number}")
        assert found.status_code in (200, 503), found.text
        if found.status_code == 503:
            assert int(found.headers["retry-after"]) >= 1
    hold.set()
    assert (await running).status_code == 200
    await until(lambda: not gateway.parts.fleet.served.listed(), "the worker to be gone")
    found = await gateway.chat("afterwards")
    assert (found.status_code, found.json()["error"]["code"]) == (503, "no_worker")


async def test_liveness_answers_at_once_beside_a_thousand_running_steps(
    new_gateway: Any, worker: Any, until: Any, connect: Any, make_request: Any, chat_body: Any
) -> None:
    async def never(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = never
    gateway = await new_gateway(worker, policy={"admission": "unlimited", "backlog": 2000})
    lines = [await connect(gateway.url) for _ in range(1000)]
    for number, line in enumerate(lines):
        await line.send(make_request(chat_body(f"task {number}"), f"/t/{number}/v1/chat/completions"))
    await until(lambda: gateway.parts.driver.live_steps == 1000, "a thousand steps")
    async with asyncio.timeout(2):
        assert (await gateway.client.get("/health")).json() == {"status": "ok"}
    for line in lines:
        line.leave()
    await until(gateway.at_rest, "all steps to end")
    assert gateway.parts.driver.audit() == []
