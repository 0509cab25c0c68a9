"""A test whose request gets no answer says why: what the gateway knew, and where everybody waited."""

import asyncio
from typing import Any

import httpx
import pytest


async def test_a_request_without_an_answer_says_where_its_step_stood(gateway: Any, worker: Any) -> None:
    async def never(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = never
    with pytest.raises(httpx.ReadTimeout) as lost:
        await gateway.client.post(
            "/v1/chat/completions",
            json={"model": "test-model", "messages": []},
            headers={"x-heddle-trajectory-id": "lost"},
            timeout=httpx.Timeout(10.0, read=0.1),
        )
    (said,) = lost.value.__notes__
    assert said.startswith("POST /v1/chat/completions")
    assert "'steps_at_worker': 1" in said
    assert f"fake worker {worker.url}: 1 steps received" in said
    assert "step 1 of 'lost': decision Dispatch(" in said
    (served,) = [line for line in said.splitlines() if "StepServer.serve" in line]
    assert "WorkerPool.exchange" in served


async def test_what_a_gateway_says_has_the_loops_longest_stall_and_every_task(gateway: Any) -> None:
    assert "event loop stood still for" in gateway.says()
    assert f"task {asyncio.current_task().get_name()}" in gateway.says()  # type: ignore[union-attr]
