"""A GRPO loop of one's own: every iteration announces its batch, runs all agents side by side, says of each
when it is over, and pauses generation for the new weights.

    python examples/grpo_rollout.py --iterations 2 --prompts 4 --group-size 4
"""

import argparse
import asyncio
import json
import statistics
from typing import Any

import httpx
import openai

KEY = "unused"
BASH: Any = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
MAX_STEPS = 8


async def run_agent(client: openai.AsyncOpenAI, model: str, task: str) -> float:
    """One trajectory; its reward. What the trainer needs of each step is in ``choice`` and ``answer``."""
    messages: Any = [{"role": "user", "content": task}]
    for _ in range(MAX_STEPS):
        answer = await client.chat.completions.create(
            model=model,
            messages=messages,
            tools=[{"type": "function", "function": BASH}],
            logprobs=True,
            extra_body={"return_token_ids": True},  # fields that Heddle does not know reach the engine
        )
        choice = answer.choices[0]
        messages.append(choice.message.model_dump(exclude_none=True))
        if choice.finish_reason != "tool_calls":  # "abort": cut by /abort_request or a pause of mode abort
            return float(choice.finish_reason == "stop")
        for call in choice.message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
    return 0.0


async def iterate(gateway: httpx.AsyncClient, client: openai.AsyncOpenAI, number: int, asked: Any) -> None:
    model = (await client.models.list()).data[0].id
    prompts = [{"id": f"it{number}-task{at}", "tokens": 64} for at in range(asked.prompts)]
    batch = {"policy_version": str(number), "group_size": asked.group_size, "prompts": prompts}
    created = (await gateway.post("/admin/v1/rollouts", json=batch)).raise_for_status().json()
    rewards: dict[str, list[float]] = {}

    async def member(one: dict[str, Any]) -> None:
        named = client.with_options(default_headers={"X-Heddle-Trajectory-Id": one["trajectory_id"]})
        reward = await run_agent(named, model, f"Solve task {one['prompt']}.")
        rewards.setdefault(one["group_id"], []).append(reward)
        # No further step comes: its place is free for others at once. Asked with the key of its steps.
        await gateway.post("/finish_session", params={"session_id": one["trajectory_id"]})

    await asyncio.gather(*map(member, created["trajectories"]))
    advantages = {group: [one - statistics.mean(all_) for one in all_] for group, all_ in rewards.items()}
    over = (await gateway.get(f"/admin/v1/rollouts/{created['rollout']['id']}")).json()
    said = {name: over[name] for name in ("state", "trajectories", "steps", "output_tokens")}
    print(json.dumps({"iteration": number, **said, "groups": len(advantages)}), flush=True)


async def update_weights(gateway: httpx.AsyncClient, checkpoint: str | None, version: int) -> None:
    """No engine is sent a step between pause and continue; steps that come meanwhile wait and do not fail."""
    (await gateway.post("/pause_generation", json={"mode": "in_place"})).raise_for_status()
    try:
        if checkpoint is not None:  # every SGLang reads it; for weights by NCCL: GET /workers, and call each
            weights = {"model_path": checkpoint, "weight_version": str(version)}
            (await gateway.post("/update_weights_from_disk", json=weights)).raise_for_status()
        (await gateway.post("/flush_cache")).raise_for_status()  # KV of the old weights
    finally:
        (await gateway.post("/continue_generation", json={})).raise_for_status()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--checkpoint", help="new weights, as the engines see the path")
    asked = parser.parse_args()
    # Steps may wait for their turn: no timeout, and no repeats beside the gateway's own.
    patient = openai.AsyncOpenAI(base_url=f"{asked.gateway}/v1", api_key=KEY, timeout=None, max_retries=0)
    auth = {"Authorization": f"Bearer {KEY}"}
    plain = httpx.AsyncClient(base_url=asked.gateway, headers=auth, timeout=600)
    async with plain as gateway, patient as client:
        for number in range(asked.iterations):
            if number:
                await update_weights(gateway, asked.checkpoint, number)
            await iterate(gateway, client, number, asked)


asyncio.run(main())
