"""Workers that fail in every way, clients that leave at any moment, operators who change everything at once.

Which of it meets what is left to seeded dice. Whatever happened, at rest the books agree.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest

CLIENTS = 24
REQUESTS_EACH = 12
WORKERS = 4
POLICIES = [
    {"order": order, "placement": placement, "admission": admission}
    for order, placement, admission in (
        ("fcfs", "round_robin", "unlimited"),
        ("longest_first", "by_rank", "working_set"),
        ("shortest_first", "least_load", "slots"),
        ("fcfs", "cache_aware", "working_set"),
        ("longest_first", "sticky", "slots"),
    )
]


class UnreliableEngine:
    """The script of one worker: answers mostly well, else in one of the ways that workers have failed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    async def __call__(self, request: Any, line: Any) -> None:
        dice = self.dice
        await asyncio.sleep(dice.choice((0, 0, 0.001, 0.02)))
        fate = dice.random()
        if fate < 0.04:
            line.reset()
        elif fate < 0.08:
            line.writer.close()
        elif fate < 0.12:
            await line.answer(503, {"object": "error", "message": "The request queue is full.", "code": 503})
        elif fate < 0.14:
            await line.answer(500, b"<html>oops</html>")
        elif fate < 0.16:
            await line.answer(
                400, {"object": "error", "message": "no", "type": "BadRequestError", "code": 400}
            )
        elif fate < 0.18:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await request.client_left.wait()
            line.reset()
        elif fate < 0.20:
            await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            line.reset()
        elif request.json().get("stream"):
            await self._stream(line)
        else:
            await line.answer_chat()

    async def _stream(self, line: Any) -> None:
        await line.begin_stream()
        for _ in range(self.dice.randint(1, 30)):
            await line.chat_event({"content": "word " * self.dice.choice((1, 1, 1, 2000))})
            if self.dice.random() < 0.01:
                line.reset()
                return
            await asyncio.sleep(self.dice.choice((0, 0, 0.002)))
        await line.chat_event({}, finish="stop")
        await line.usage_event()
        await line.event("[DONE]")
        await line.end_stream()


class Client:
    """Asks, with little patience, under a name of its own or none; reads slowly now and then."""

    def __init__(self, gateway: Any, number: int, dice: random.Random) -> None:
        self.gateway = gateway
        self.number = number
        self.dice = dice
        self.statuses: Counter[int | str] = Counter()

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.gateway.url, trust_env=False, timeout=10) as http:
            for request in range(REQUESTS_EACH):
                patience = self.dice.uniform(0, 0.1) if self.dice.random() < 0.4 else 8.0
                try:
                    async with asyncio.timeout(patience):
                        self.statuses[await self._ask(http, request)] += 1
                except TimeoutError:
                    assert patience < 8, "a request that nothing ends"
                    self.statuses["left"] += 1

    async def _ask(self, http: httpx.AsyncClient, request: int) -> int | str:
        path = f"/t/agent-{self.number}/v1/chat/completions" if self.number % 2 else "/v1/chat/completions"
        content = f"Task {self.number}, part {request}. " + "x" * self.dice.choice((0, 100, 200_000))
        body = {"model": "test-model", "messages": [{"role": "user", "content": content}]}
        body["stream"] = self.dice.random() < 0.5
        async with http.stream("POST", path, json=body) as answer:
            text = b""
            async for part in answer.aiter_bytes():
                text += part
                if self.dice.random() < 0.05:
                    await asyncio.sleep(0.01)
                if self.dice.random() < 0.01:
                    return "left in mid-answer"
        if answer.status_code == 200 and body["stream"]:
            # Either the whole answer, or an error event and no [DONE]: never a clean half.
            assert text.endswith(b"[DONE]\n\n") != (b'data: {"error"' in text), text[-300:]
        elif answer.status_code != 200:
            assert json.loads(text)["error"]["message"]
            assert answer.status_code < 500 or answer.status_code in (500, 503, 504), text
        return answer.status_code


async def operate(gateway: Any, workers: list[Any], dice: random.Random) -> None:
    """Policy changes, drains, additions, kills and restarts of workers, aborts, finishes; until cancelled."""
    while True:
        await asyncio.sleep(dice.uniform(0.005, 0.05))
        what = dice.random()
        if what < 0.3:
            answer = await gateway.client.put("/admin/v1/policy", json=dice.choice(POLICIES))
            assert answer.status_code == 200
        elif what < 0.5:
            worker = dice.choice(workers[1:])
            await worker.stop()
            worker.instance = f"{dice.random()}"
            await worker.start()
        elif what < 0.65:
            listed = (await gateway.client.get("/admin/v1/workers")).json()["items"]
            url = dice.choice(workers[1:]).url
            for one in listed:
                if one["url"] == url and one["state"] != "draining":
                    await gateway.client.delete(f"/admin/v1/workers/{one['id']}")
            assert (await gateway.client.post("/admin/v1/workers", json={"url": url})).status_code < 300
        elif what < 0.8:
            name = f"agent-{dice.randrange(CLIENTS)}"
            await gateway.client.post(f"/admin/v1/trajectories/{name}/finish")
        elif what < 0.85:
            await gateway.client.post("/abort_request", json={"abort_all": True})
        else:
            assert (await gateway.client.get("/metrics")).status_code == 200
            assert (await gateway.client.get("/admin/v1/audit")).json()["broken"] == []


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_every_step_ends_once_and_nothing_is_left(
    new_gateway: Any, new_worker: Any, until: Any, caplog: Any, seed: int
) -> None:
    dice = random.Random(seed)
    workers = [await new_worker() for _ in range(WORKERS)]
    for worker in workers:
        worker.features["max_running_requests"] = 4
        worker.script = UnreliableEngine(random.Random(dice.random()))
    gateway = await new_gateway(*workers)
    clients = [Client(gateway, number, random.Random(dice.random())) for number in range(CLIENTS)]
    operator = asyncio.create_task(operate(gateway, workers, dice))
    try:
        await asyncio.gather(*(client.run() for client in clients))
    finally:
        operator.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await operator

    await until(gateway.at_rest, "all steps to end")
    parts = gateway.parts
    assert parts.driver.audit() == []
    stats = parts.driver.stats()
    ended = sum(count for name, count in stats.items() if name.endswith("_total") and _is_outcome(name))
    assert ended == stats["steps_ended_total"] == stats["steps_arrived_total"]
    assert (stats["illegal_moves_total"], stats["refused_events_total"]) == (0, 0)
    records = await gateway.records(stats["steps_arrived_total"])
    assert len(records) == stats["steps_arrived_total"]
    # Some clients leave, and some workers go, between the decision and the attempt.
    assert 0 <= stats["dispatches_total"] - sum(record.attempts for record in records) < 30
    history = parts.history.stats()
    assert (history.dropped, history.refused, history.put) == (0, 0, history.written)
    assert parts.upstream.stats()["connections_busy"] == 0
    # Every request that got an answer was a step; the others may have left before it was one.
    answered = sum(
        count for client in clients for status, count in client.statuses.items() if status != "left"
    )
    assert answered <= stats["steps_arrived_total"] <= CLIENTS * REQUESTS_EACH
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    # And it still serves.
    for worker in workers:
        worker.script = None
    await until(lambda: parts.fleet.active() >= 1, "a worker in service")
    assert (await gateway.chat("still there?")).status_code == 200


def _is_outcome(name: str) -> bool:
    outcomes = ("done", "aborted", "worker_lost", "client_error", "worker_error", "rejected", "timed_out")
    return name.removeprefix("steps_").removesuffix("_total") in outcomes
