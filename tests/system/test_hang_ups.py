"""Clients that hang up in 30 % of their requests, at any moment: afterwards all books agree.

The engines' counts, the core's, the history's and the metrics' are kept by different parts in different
processes; that they add up is what shows that every step ended exactly once.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"
AGENTS = 48
STEPS = 5
TOKENS = 40
HANG_UP_SHARE = 0.3
LONGEST_PATIENCE_S = 1.0
"""Twice what an answer takes, so that hang-ups meet requests that wait, run, and are nearly done."""


@dataclass
class Tally:
    """What the clients know."""

    answered: int = 0
    hung_up: int = 0


@dataclass(frozen=True)
class HangUp:
    """When a client leaves: after so many seconds, or in a stream after so many chunks."""

    patience_s: float | None = None
    chunks: int | None = None


async def ask(port: int, agent: int, step: int, *, stream: bool, hang_up: HangUp | None) -> bool:
    """One request over a connection of its own; False where the client hung up on it.

    Plain sockets: an SDK's client takes its time before it sends, and would often leave before that.
    """
    messages: list[Any] = [{"role": "user", "content": f"Task {agent}."}]
    for past in range(step):
        messages += [
            {"role": "assistant", "content": f"answer {past} of {agent}"},
            {"role": "user", "content": f"Go on with part {past}."},
        ]
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": TOKENS, "stream": stream}).encode()
    head = f"POST /t/agent-{agent}/v1/chat/completions HTTP/1.1\r\nhost: heddle\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(hang_up.patience_s if hang_up else None):
            answer = await _read(reader, hang_up.chunks if hang_up else None)
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()
    if answer is None:
        return False
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert (b"[DONE]" if stream else b'"finish_reason":"stop"') in answer
    return True


async def _read(reader: asyncio.StreamReader, chunks: int | None) -> bytes | None:
    """The whole answer; None after so many chunks of a stream."""
    answer = b""
    while data := await reader.read(65536):
        answer += data
        if chunks is not None and answer.count(b"data: ") >= chunks:
            return None
    return answer


async def run_agent(port: int, agent: int, tally: Tally) -> None:
    """Repeats each step until it is answered, as agents do."""
    dice = random.Random(agent)
    for step in range(STEPS):
        while True:
            stream = dice.random() < 0.5
            hang_up = None
            if dice.random() < HANG_UP_SHARE:
                patience = dice.uniform(0, LONGEST_PATIENCE_S)
                hang_up = HangUp(chunks=dice.randint(1, 20)) if stream else HangUp(patience_s=patience)
            if await ask(port, agent, step, stream=stream, hang_up=hang_up):
                tally.answered += 1
                break
            tally.hung_up += 1


async def test_all_books_agree_after_hang_ups_at_any_moment(parts: Any, until: Any) -> None:
    emulated = await parts.run(
        "emulate", "--tp", "1,1", "--base-port", "0", "--speed", "1", "--model", MODEL, "--slots", "8"
    )
    urls = json.loads(await emulated.line("ready"))["workers"]
    gateway = await parts.gateway(urls)
    tally = Tally()

    async def admit_everything_when_half_is_done() -> None:
        """So that requests wait in the gateway first, in the engines later."""

        async def half() -> bool:
            return tally.answered >= AGENTS * STEPS / 2

        await until(half, "half of the rollout")
        change = {"order": "fcfs", "placement": "least_load", "admission": "unlimited", "backlog": 1000}
        (await gateway.http.put("/admin/v1/policy", json=change)).raise_for_status()

    async with asyncio.TaskGroup() as running:
        running.create_task(admit_everything_when_half_is_done())
        for number in range(AGENTS):
            running.create_task(run_agent(gateway.http.base_url.port, number, tally))

    stats = await gateway.at_rest()
    await gateway.is_sound()
    steps, core = stats["steps"], stats["core"]
    ended = Counter({outcome: count for outcome, count in steps["ended"].items() if count})
    records = [one for number in range(AGENTS) for one in await gateway.steps(f"agent-{number}")]

    # The gateway's own count: everything that was started has ended, as done or aborted.
    assert set(ended) == {"done", "aborted"}
    assert steps["in_flight"] == 0
    assert steps["started"] == ended["done"] + ended["aborted"]
    # A hang-up can meet an answer that is complete, or be over before the gateway has read the request.
    assert tally.answered == AGENTS * STEPS <= ended["done"]
    assert 0.6 * tally.hung_up <= ended["aborted"] <= tally.hung_up
    assert steps["started"] <= tally.answered + tally.hung_up
    assert tally.hung_up >= 50

    # History: one row per step, each trajectory complete.
    assert Counter(one["outcome"] for one in records) == ended
    # A client can leave between the core's word and the first byte to the worker: that is no attempt.
    attempts = sum(one["attempts"] for one in records)
    assert core["dispatches_total"] - 5 <= attempts <= core["dispatches_total"]
    for one in await gateway.trajectories():
        own = [record for record in records if record["trajectory_id"] == one["trajectory_id"]]
        assert {record["step"] for record in own} == set(range(one["steps"]))
        # One more where a client came back before its hang-up had: that looks like two calls at once.
        assert one["steps"] >= STEPS
        assert one["outcomes"] == Counter(record["outcome"] for record in own)
    # Hang-ups came at all moments: held here, sent but silent, in mid-stream.
    aborted = [one for one in records if one["outcome"] == "aborted"]
    moments = Counter(
        "held" if one["dispatched_at"] is None else "silent" if one["first_byte_at"] is None else "streaming"
        for one in aborted
    )
    assert min(moments[moment] for moment in ("held", "silent", "streaming")) >= 5, moments

    # The engines: nothing runs or waits, and they saw what was sent, no more.
    async def engines_rest() -> bool:
        loads = [(await gateway.http.get(f"{url}/v1/loads")).json()["aggregate"] for url in urls]
        return all(
            (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (0, 0, 0)
            for load in loads
        )

    await until(engines_rest, "engines at rest")
    totals: Counter[str] = Counter()
    for url in urls:
        for line in (await gateway.http.get(f"{url}/metrics")).text.splitlines():
            if line.startswith("sglang:num_") and "_requests_total{" in line:
                totals[line.partition("{")[0]] += int(float(line.rpartition(" ")[2]))
    finished = totals["sglang:num_requests_total"] - totals["sglang:num_aborted_requests_total"]
    sent = [one for one in records if one["dispatched_at"] is not None]
    assert totals["sglang:num_requests_total"] <= attempts
    assert ended["done"] <= finished <= len(sent)
    assert totals["sglang:num_aborted_requests_total"] > 0

    # Metrics say the same.
    for outcome in ended:
        assert await gateway.metric("heddle_steps_total", outcome=outcome) == ended[outcome]
    assert await gateway.metric("heddle_steps_total") == steps["started"]
    assert await gateway.metric("heddle_worker_steps_total") == len(sent)
    assert await gateway.metric("heddle_attempts_total") == attempts
    assert await gateway.metric("heddle_core_steps_live") == 0
    moves = await gateway.ended_moves()
    assert await gateway.metric("heddle_history_written_total") == len(records) + moves
    for name, field in (("prompt", "prompt_tokens"), ("cached_prompt", "cached_tokens")):
        assert await gateway.metric(f"heddle_{name}_tokens_total") == sum(one[field] for one in records)
