"""A benchmark run: N tasks, k samples each; then time and tokens of every trajectory as the gateway counted
them, as JSON lines, and a summary on standard error.

    python examples/agent_eval.py --tasks 8 --samples 4 > results.jsonl
"""

import argparse
import asyncio
import json
import sys
import uuid
from typing import Any

import httpx
import openai

KEY = "unused"
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": LOOK}]
MAX_STEPS = 6


async def solve(client: openai.AsyncOpenAI, model: str, task: str) -> tuple[int, bool]:
    """The agent under test: steps taken, and whether it ended by itself. It knows nothing of the gateway."""
    messages: Any = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": task}]
    for step in range(1, MAX_STEPS + 1):
        answer = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return step, True
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "empty"})
    return MAX_STEPS, False


async def measured(gateway: httpx.AsyncClient, trajectory_id: str, steps: int) -> dict[str, Any]:
    """From its records, which are written beside the data path, a moment later."""
    records: list[dict[str, Any]] = []
    while len(records) < steps:
        await asyncio.sleep(0.1)
        found = await gateway.get(f"/admin/v1/trajectories/{trajectory_id}", params={"steps_limit": 2000})
        if found.status_code != 404:  # nothing of it is written yet
            records = found.raise_for_status().json()["steps"]["items"]
    tokens = ("prompt_tokens", "cached_tokens", "output_tokens")
    return {
        "seconds": round(max(one["ended_at"] for one in records) - records[0]["arrived_at"], 3),
        "waited_s": round(
            sum((one["dispatched_at"] or one["ended_at"]) - one["arrived_at"] for one in records), 3
        ),
        **{name: sum(one[name] for one in records) for name in tokens},
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=16)
    asked = parser.parse_args()
    run = f"eval-{uuid.uuid4().hex[:8]}"
    room = asyncio.Semaphore(asked.concurrency)
    patient = openai.AsyncOpenAI(base_url=f"{asked.gateway}/v1", api_key=KEY, timeout=None)
    # The key is part of a trajectory's name: /finish_session finds those of its own.
    plain = httpx.AsyncClient(base_url=asked.gateway, headers={"Authorization": f"Bearer {KEY}"})
    async with plain as gateway, patient as client:
        model = (await client.models.list()).data[0].id

        async def one(task: int, sample: int) -> dict[str, Any]:
            group, name = f"{run}-{task}", f"{run}-{task}-{sample}"
            headers = {
                "X-Heddle-Trajectory-Id": name,
                "X-Heddle-Group": group,
                "X-Heddle-Sample": str(sample),
            }
            async with room:
                steps, ended = await solve(
                    client.with_options(default_headers=headers), model, f"Task {task}."
                )
                await gateway.post("/finish_session", params={"session_id": name})
            facts = {"task": task, "sample": sample, "trajectory": name, "steps": steps, "ended": ended}
            return facts | await measured(gateway, name, steps)

        pairs = ((task, sample) for task in range(asked.tasks) for sample in range(asked.samples))
        results = await asyncio.gather(*(one(*pair) for pair in pairs))
    for result in results:
        print(json.dumps(result))
    rate = sum(one["ended"] for one in results) / len(results)
    longest = max(one["seconds"] for one in results)
    print(f"{run}: {len(results)} trajectories, {rate:.0%} ended, longest {longest:.1f} s", file=sys.stderr)


asyncio.run(main())
