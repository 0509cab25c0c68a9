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

import httpx
import openai
import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"
AGENTS = 60
STEPS = 8
TOKENS = 60
HANG_UP_SHARE = 0.3
LONGEST_PATIENCE_S = 0.6


@dataclass
class Tally:
    """What the clients know."""

    answered: int = 0
    hung_up: int = 0


async def one_request(
    client: openai.AsyncOpenAI, messages: list[Any], dice: random.Random, tally: Tally
) -> str:
    """One request; "" where the client hung up on it."""
    streams = dice.random() < 0.5
    hangs_up = dice.random() < HANG_UP_SHARE
    after_chunks = dice.randint(1, TOKENS // 2) if streams and hangs_up and dice.random() < 0.5 else None
    patience = dice.uniform(0, LONGEST_PATIENCE_S) if hangs_up and after_chunks is None else None
    try:
        async with asyncio.timeout(patience):
            content = await _ask(client, messages, streams, after_chunks)
    except TimeoutError:
        content = ""
    tally.answered += bool(content)
    tally.hung_up += not content
    return content


async def _ask(
    client: openai.AsyncOpenAI, messages: list[Any], streams: bool, after_chunks: int | None
) -> str:
    wanted: Any = {"model": MODEL, "messages": messages, "max_tokens": TOKENS}
    if not streams:
        answer = await client.chat.completions.create(**wanted)
        return answer.choices[0].message.content or ""
    content = ""
    async with await client.chat.completions.create(stream=True, **wanted) as stream:
        chunks = 0
        async for chunk in stream:
            content += "".join(choice.delta.content or "" for choice in chunk.choices)
            chunks += 1
            if chunks == after_chunks:
                return ""
    return content


async def run_agent(number: int, client: openai.AsyncOpenAI, tally: Tally) -> None:
    """Repeats each step until it is answered, as agents do."""
    dice = random.Random(number)
    messages: list[Any] = [{"role": "user", "content": f"Task {number}."}]
    for step in range(STEPS):
        while not (content := await one_request(client, messages, dice, tally)):
            pass
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": f"Part {step} of {number}."},
        ]


async def test_all_books_agree_after_hang_ups_at_any_moment(parts: Any, until: Any) -> None:
    emulated = await parts.run(
        "emulate", "--tp", "1,1", "--base-port", "0", "--speed", "4", "--model", MODEL, "--slots", "8"
    )
    urls = json.loads(await emulated.line("ready"))["workers"]
    gateway = await parts.gateway(urls)
    tally = Tally()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = parts.client(
        gateway, max_retries=0, http_client=httpx.AsyncClient(limits=limits, trust_env=False, timeout=60)
    )

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
            named = client.with_options(base_url=f"{gateway.url}/t/agent-{number}/v1")
            running.create_task(run_agent(number, named, tally))

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
    assert ended["done"] >= tally.answered == AGENTS * STEPS
    assert ended["aborted"] <= tally.hung_up
    assert steps["started"] <= tally.answered + tally.hung_up
    assert ended["aborted"] > 0.6 * tally.hung_up > 50

    # History: one row per step, each trajectory complete.
    assert Counter(one["outcome"] for one in records) == ended
    assert {one["steps"] for one in await gateway.trajectories()} == {STEPS}
    assert len(await gateway.trajectories()) == AGENTS
    assert sum(one["attempts"] for one in records) == core["dispatches_total"]
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
    assert totals["sglang:num_requests_total"] <= core["dispatches_total"]
    assert ended["done"] <= finished <= len(sent)
    assert totals["sglang:num_aborted_requests_total"] > 0

    # Metrics say the same.
    for outcome in ended:
        assert await gateway.metric("heddle_steps_total", outcome=outcome) == ended[outcome]
    assert await gateway.metric("heddle_steps_total") == steps["started"]
    assert await gateway.metric("heddle_worker_steps_total") == len(sent)
    assert await gateway.metric("heddle_attempts_total") == core["dispatches_total"]
    assert await gateway.metric("heddle_core_steps_live") == 0
    assert await gateway.metric("heddle_history_written_total") == len(records)
    for name, field in (("prompt", "prompt_tokens"), ("cached_prompt", "cached_tokens")):
        assert await gateway.metric(f"heddle_{name}_tokens_total") == sum(one[field] for one in records)
