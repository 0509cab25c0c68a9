"""Each file of ``examples/`` as a process against `heddle up`, and what the gateway recorded of it."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(shared_parts: Any) -> Any:
    return await shared_parts.up("--speed", "50")


async def run(gateway: Any, name: str, *arguments: str) -> list[str]:
    """Lines that the example printed; it has to end well. The gateway is at rest and sound then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        "--gateway",
        gateway.url,
        *arguments,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    await gateway.at_rest()
    await gateway.is_sound()
    return said.decode().splitlines()


async def test_grpo_rollouts_are_announced_run_and_over(gateway: Any) -> None:
    lines = await run(gateway, "grpo_rollout.py", "--iterations", "2", "--prompts", "2", "--group-size", "3")
    said = [json.loads(line) for line in lines]
    assert [one["iteration"] for one in said] == [0, 1]
    rollouts = (await gateway.get("/rollouts"))["items"][::-1]
    assert [rollout["policy_version"] for rollout in rollouts] == ["0", "1"]
    for told, rollout in zip(said, rollouts, strict=True):
        assert (told["state"], rollout["trajectories"], rollout["finished"]) == ("finished", 6, 6)
        assert rollout["quiet"] == 0, "each was said to be over"
        assert (told["steps"], told["output_tokens"], told["groups"]) == (
            rollout["steps"],
            rollout["output_tokens"],
            2,
        )
        members = (await gateway.get(f"/rollouts/{rollout['id']}/trajectories"))["items"]
        for member in members:
            steps = await gateway.steps(member["trajectory_id"])
            assert [step["step"] for step in steps] == list(range(member["steps"]))
            assert {(step["group_id"], step["sample"]) for step in steps} == {
                (member["group_id"], member["sample"])
            }
            assert {(step["source"], step["outcome"]) for step in steps} == {("header", "done")}
    ended = (await gateway.get("/stats"))["core"]
    assert ended["trajectories_active"] == 0
    assert not (await gateway.http.get("/ready")).json()["paused"]


async def test_an_evaluation_reports_what_the_gateway_counted(gateway: Any) -> None:
    results = [
        json.loads(line) for line in await run(gateway, "agent_eval.py", "--tasks", "3", "--samples", "2")
    ]
    assert sorted((one["task"], one["sample"]) for one in results) == [
        (t, s) for t in range(3) for s in (0, 1)
    ]
    for one in results:
        steps = await gateway.steps(one["trajectory"])
        assert [step["step"] for step in steps] == list(range(one["steps"]))
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            assert one[name] == sum(step[name] for step in steps)
        assert one["seconds"] >= max(step["ended_at"] - step["arrived_at"] for step in steps) - 0.001
        listed = (await gateway.get("/trajectories", prefix=one["trajectory"]))["items"]
        assert [found["phase"] for found in listed] == ["finished"]
        group = one["trajectory"].rpartition("-")[0]
        assert {(step["group_id"], step["sample"]) for step in steps} == {(group, one["sample"])}


async def test_an_agent_with_the_anthropic_sdk_is_the_trajectory_it_names(gateway: Any) -> None:
    lines = await run(
        gateway, "claude_agent.py", "Mend the parser.", "--name", "claude-7", "--max-steps", "3"
    )
    steps = await gateway.steps("claude-7")
    assert [step["step"] for step in steps] == list(range(len(lines)))
    assert {(step["source"], step["dialect"], step["outcome"]) for step in steps} == {
        ("url", "messages", "done")
    }
    assert all(f"{step['output_tokens']} tokens" in line for step, line in zip(steps, lines, strict=True))
    detail = await gateway.get("/trajectories/claude-7")
    assert detail["trajectory"]["phase"] == "finished"


async def test_langchain_agents_with_nothing_but_a_base_url_are_told_apart(gateway: Any) -> None:
    before = {one["trajectory_id"] for one in await gateway.trajectories()}
    tasks = ("Mend the parser.", "Write its test.", "Mend the parser.")
    lines = await run(gateway, "langchain_agent.py", *tasks, "--max-steps", "4")
    taken = sorted(int(line.split()[-2]) for line in lines)
    found = [one for one in await gateway.trajectories() if one["trajectory_id"] not in before]
    assert sorted(one["steps"] for one in found) == taken
    for one in found:
        steps = await gateway.steps(one["trajectory_id"])
        assert [step["step"] for step in steps] == list(range(one["steps"]))
        assert [step["source"] for step in steps] == ["history-new"] + ["history"] * (len(steps) - 1)
        assert {step["segment"] for step in steps} == {0}
