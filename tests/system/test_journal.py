"""A live run's journal decides the same when it is replayed."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from heddle_core import replay

pytestmark = pytest.mark.system

AGENTS = 20
IMPATIENT = 4


async def test_a_rollout_replayed_from_its_journal_makes_the_same_decisions(
    parts: Any, tmp_path: Path
) -> None:
    emulated = await parts.run(
        "emulate", "--tp", "2,1", "--base-port", "0", "--speed", "20", "--model", "m", "--slots", "4"
    )
    urls = json.loads(await emulated.line("ready"))["workers"]
    journal = tmp_path / "journal.jsonl"
    gateway = await parts.gateway(urls, "--journal", str(journal))
    client = parts.client(gateway, max_retries=0)

    async def agent(number: int) -> None:
        messages: list[Any] = [{"role": "user", "content": f"Task {number}."}]
        for step in range(4):
            answer = await client.chat.completions.create(
                model="m", messages=messages, max_tokens=30 + 20 * (number % 5)
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": f"Go on with part {step}."})

    async def impatient(number: int) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": f"Long task {number}."}],
                    max_tokens=20_000,
                )

    await asyncio.gather(
        *(agent(number) for number in range(AGENTS)), *(impatient(n) for n in range(IMPATIENT))
    )
    (await gateway.http.put("/admin/v1/policy", json={"order": "fcfs"})).raise_for_status()
    await agent(AGENTS)
    stats = await gateway.at_rest()
    core = stats["core"]
    records = [await gateway.steps(one["trajectory_id"]) for one in await gateway.trajectories()]
    attempts = sum(step["attempts"] for steps in records for step in steps)
    assert await gateway.part.stop() == 0

    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert lines[0]["policy"]["order"] == "longest_first"
    events = Counter(next(iter(line["event"])) for line in lines[1:] if isinstance(line.get("event"), dict))
    assert events, lines[1]
    first, second = replay(journal.read_bytes()), replay(journal.read_bytes())
    assert first == second
    assert first["events"] == len(lines) - 1
    # No action is anything but a dispatch here. The history has an attempt for each, but where a client left
    # between the core's word and the first byte.
    others = ("rejects_total", "withdrawals_total", "trajectories_forgotten_total")
    assert [core[name] for name in others] == [0, 0, 0]
    assert first["actions"] == core["dispatches_total"]
    assert core["dispatches_total"] - IMPATIENT <= attempts <= core["dispatches_total"]
    # Another policy decides otherwise on the same events: the digest tells.
    assert replay(journal.read_bytes(), json.dumps({"placement": "round_robin"}))["digest"] != first["digest"]


async def test_a_gateway_that_starts_again_begins_a_journal_of_its_own(parts: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    for _ in range(2):
        gateway = await parts.gateway([], "--journal", str(journal))
        assert await gateway.part.stop() == 0
    assert replay(journal.read_bytes()) == replay((tmp_path / "journal.1.jsonl").read_bytes())
