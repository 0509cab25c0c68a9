"""Workers die, are busy, or answer with errors; the caller sees as little of it as can be."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Until = Callable[..., Awaitable[None]]
ROUND_ROBIN = {"placement": "round_robin", "order": "fcfs", "admission": "unlimited"}


async def reset(request: Any, line: Any) -> None:
    line.reset()


async def close(request: Any, line: Any) -> None:
    line.writer.close()


async def half_an_answer(request: Any, line: Any) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    line.reset()


async def headers_of_a_stream_only(request: Any, line: Any) -> None:
    await line.begin_stream()
    line.reset()


async def queue_full(request: Any, line: Any) -> None:
    text = "The request queue is full."
    await line.answer(503, {"object": "error", "message": text, "type": "Service Unavailable", "code": 503})


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        (reset, False),
        (reset, True),
        (close, False),
        (close, True),
        (half_an_answer, False),
        (headers_of_a_stream_only, True),
        (queue_full, False),
        (queue_full, True),
    ],
)
async def test_a_worker_lost_before_any_byte_went_out_is_replaced_unseen(
    new_gateway: Any, new_worker: Any, fault: Any, stream: bool
) -> None:
    bad, good = await new_worker(), await new_worker()
    bad.script = fault
    gateway = await new_gateway(bad, good, policy=ROUND_ROBIN)
    answers = [
        await gateway.chat(path=f"/t/{number}/v1/chat/completions", stream=stream) for number in range(4)
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.headers["x-heddle-worker"] for answer in answers} == {f"127.0.0.1:{good.port}"}
    assert bad.received, "the bad worker was never tried"
    records = await gateway.records(4)
    assert all(record.outcome == "done" for record in records)
    assert sum(record.attempts for record in records) == 4 + len(bad.received)
    first_rid = bad.received[0].json()["rid"]
    assert all(request.json()["rid"] != first_rid for request in good.received)
    assert gateway.at_rest()
    assert gateway.parts.driver.audit() == []


async def test_a_worker_killed_in_mid_generation_is_replaced_unseen(
    new_gateway: Any, new_worker: Any, until: Until
) -> None:
    doomed, good = await new_worker(), await new_worker()
    dead = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        await dead.wait()
        await line.answer_chat()

    doomed.script = good.script = script
    gateway = await new_gateway(doomed, good, policy=ROUND_ROBIN)
    calls = [asyncio.create_task(gateway.chat(path=f"/t/{n}/v1/chat/completions")) for n in range(6)]
    await until(lambda: len(doomed.received) == len(good.received) == 3, "three steps on each worker")
    await doomed.stop()
    dead.set()
    answers = await asyncio.gather(*calls)
    assert [answer.status_code for answer in answers] == [200] * 6
    assert {answer.headers["x-heddle-worker"] for answer in answers} == {f"127.0.0.1:{good.port}"}
    assert len(good.received) == 6
    records = await gateway.records(6)
    assert sorted(record.attempts for record in records) == [1, 1, 1, 2, 2, 2]


async def test_a_worker_lost_in_mid_stream_ends_the_stream_with_an_error_event(
    gateway: Any, worker: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"content": "Hel"})
        await line.chunk(b'data: {"choices": [{"ind')
        line.reset()

    worker.script = script
    answer = await gateway.chat(stream=True)
    assert answer.status_code == 200
    events = [event for event in answer.text.split("\n\n") if event]
    assert json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == "Hel"
    error = json.loads(events[1].removeprefix("data: "))["error"]
    assert error["code"] == "worker_lost"
    assert len(events) == 2
    assert "[DONE]" not in answer.text
    (record,) = await gateway.records(1)
    assert (record.outcome, record.output_tokens) == ("worker_lost", 1)


async def test_a_stream_that_just_stops_is_not_taken_for_a_whole_one(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"content": "Hel"})
        await line.end_stream()

    worker.script = script
    answer = await gateway.chat(stream=True)
    assert "worker_lost" in answer.text
    assert "[DONE]" not in answer.text
    (record,) = await gateway.records(1)
    assert record.outcome == "worker_lost"


async def test_after_a_lost_stream_the_clients_retry_is_the_same_step(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"content": "Hel"})
        line.reset()

    worker.script = script
    lost = await gateway.chat(stream=True)
    worker.script = None
    again = await gateway.chat(stream=True)
    assert again.headers["x-heddle-trajectory-id"] == lost.headers["x-heddle-trajectory-id"]
    assert again.headers["x-heddle-step"] == "0"
    records = await gateway.records(2)
    assert [(record.step, record.outcome, record.retries) for record in records] == [
        (0, "worker_lost", 0),
        (0, "done", 1),
    ]


async def test_an_error_event_of_the_engine_is_passed_on_and_recorded(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"content": "Hel"})
        await line.event(
            {"error": {"message": "CUDA out of memory", "type": "InternalServerError", "code": 500}}
        )
        await line.event("[DONE]")
        await line.end_stream()

    worker.script = script
    answer = await gateway.chat(stream=True)
    assert "CUDA out of memory" in answer.text
    (record,) = await gateway.records(1)
    assert record.outcome == "worker_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_flat_error_of_sglang_is_wrapped_with_its_text_and_status(
    gateway: Any, worker: Any, stream: bool
) -> None:
    text = "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
    flat = {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400}

    async def script(request: Any, line: Any) -> None:
        await line.answer(400, flat)

    worker.script = script
    answer = await gateway.chat(stream=stream)
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}
    }
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status) == ("client_error", 400)
    assert gateway.parts.fleet.list()[0].state == "active"


async def test_client_faults_never_take_a_worker_out(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(422, {"detail": [{"msg": "Field required"}]})

    worker.script = script
    for _ in range(20):
        answer = await gateway.chat()
        assert answer.status_code == 422
        assert "Field required" in answer.json()["error"]["message"]
    worker.script = None
    assert (await gateway.chat()).status_code == 200


async def test_a_500_of_a_worker_is_passed_on_wrapped_and_not_sent_again(
    new_gateway: Any, new_worker: Any
) -> None:
    first, second = await new_worker(), await new_worker()

    async def script(request: Any, line: Any) -> None:
        await line.answer(
            500, b"Internal Server Error", {"content-type": "text/plain", "x-engine-trace": "7"}
        )

    first.script = second.script = script
    gateway = await new_gateway(first, second)
    answer = await gateway.chat()
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "Internal Server Error")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-engine-trace"] == "7"
    assert len(first.received) + len(second.received) == 1
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status) == ("worker_error", 500)


async def test_when_every_worker_is_full_the_caller_is_told_to_come_back(
    new_gateway: Any, new_worker: Any
) -> None:
    workers = [await new_worker(), await new_worker()]
    for worker in workers:
        worker.script = queue_full
    gateway = await new_gateway(*workers)
    answer = await gateway.chat()
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    error = answer.json()["error"]
    assert "The request queue is full." in error["message"]
    assert error["code"] in ("attempts_exhausted", "no_worker")
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status) == ("rejected", 503)


async def test_without_any_worker_the_answer_is_503_and_never_404(new_gateway: Any) -> None:
    gateway = await new_gateway()
    started = time.monotonic()
    answer = await gateway.chat()
    assert time.monotonic() - started < 5
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert answer.json()["error"]["code"] == "no_worker"
    assert (await gateway.client.get("/ready")).status_code == 503
    (record,) = await gateway.records(1)
    assert (record.outcome, record.attempts, record.worker) == ("rejected", 0, None)


async def test_a_finish_reason_abort_is_shown_as_it_is_and_never_recorded_as_done(
    gateway: Any, worker: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(
            200,
            {
                "object": "chat.completion",
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": "Hel"}, "finish_reason": "abort"}
                ],
                "usage": {"prompt_tokens": 5, "completion_tokens": 1},
            },
        )

    worker.script = script
    answer = await gateway.chat()
    assert answer.json()["choices"][0]["finish_reason"] == "abort"
    (record,) = await gateway.records(1)
    assert (record.outcome, record.finish_reason, record.output_tokens) == ("aborted", "abort", 1)


async def test_a_silent_worker_is_given_up_after_the_idle_timeout(
    new_gateway: Any, worker: Any, until: Until
) -> None:
    async def never(request: Any, line: Any) -> None:
        await request.client_left.wait()

    worker.script = never
    gateway = await new_gateway(worker, idle_timeout_s=0.1)
    answer = await gateway.chat()
    assert answer.status_code == 504
    await until(lambda: worker.aborts, "the abort of what the worker may still do")
    (record,) = await gateway.records(1)
    assert (record.outcome, record.status) == ("timed_out", 504)


async def test_a_redirect_of_a_worker_is_not_followed(gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.answer(307, b"", {"location": "http://169.254.169.254/latest/meta-data"})

    worker.script = script
    answer = await gateway.chat()
    assert answer.status_code == 502
    (record,) = await gateway.records(1)
    assert record.outcome == "worker_error"


async def test_a_worker_taken_out_by_its_probes_gives_its_steps_back(
    new_gateway: Any, new_worker: Any, until: Until
) -> None:
    """The host hangs: no reset comes, only the fleet's probes say that it is gone."""
    hung, good = await new_worker(), await new_worker()

    async def never(request: Any, line: Any) -> None:
        await request.client_left.wait()

    hung.script = good.script = never
    gateway = await new_gateway(hung, good, policy=ROUND_ROBIN)
    call = asyncio.create_task(gateway.chat())
    await until(lambda: hung.received or good.received, "the step at a worker")
    victim, other = (hung, good) if hung.received else (good, hung)
    other.script = None
    view = next(view for view in gateway.parts.fleet.list() if view.url == victim.url)
    gateway.parts.driver.workers.down(view.worker_id, view.generation)
    assert (await call).status_code == 200
    assert victim.received[0].client_left.is_set()
    await until(lambda: victim.aborts, "the abort at the hung worker")
    assert victim.aborts == [victim.received[0].json()["rid"]]


async def test_a_worker_lost_in_its_first_event_is_replaced_unseen(new_gateway: Any, new_worker: Any) -> None:
    """Bytes came, but no whole event: the client has seen nothing."""
    bad, good = await new_worker(), await new_worker()

    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chunk(b'data: {"choices": [{"index": 0, "delta": {"con')
        line.reset()

    bad.script = script
    gateway = await new_gateway(bad, good, policy=ROUND_ROBIN)
    answers = [await gateway.chat(path=f"/t/{n}/v1/chat/completions", stream=True) for n in range(2)]
    assert bad.received
    assert all("[DONE]" in answer.text and "error" not in answer.text for answer in answers)
