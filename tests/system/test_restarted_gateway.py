"""kill -9 of the gateway itself: with the same history, a new process goes on where the old one was."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"


async def ask(client: Any, messages: list[Any], **more: Any) -> tuple[str, str]:
    """(trajectory, step) as the answer's headers say; the answer goes into ``messages``."""
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=5, **more
    )
    messages += [
        {"role": "assistant", "content": raw.parse().choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    return raw.headers["x-heddle-trajectory-id"], raw.headers["x-heddle-step"]


async def test_step_numbers_of_named_trajectories_go_on_after_kill_9(
    parts: Any, until: Any, tmp_path: Path
) -> None:
    engine = await parts.engine("--speed", "20", "--model", MODEL)
    database = ("--database", str(tmp_path / "kept.db"))
    gateway = await parts.gateway([engine.url], *database)
    names = ["agent-a", "harbor/task:0"]
    talks: dict[str, list[Any]] = {name: [{"role": "user", "content": f"Task {name}."}] for name in names}
    client = parts.client(gateway, max_retries=0)
    for step in range(3):
        for name in names:
            tag = {"X-Heddle-Trajectory-Id": name, "X-Heddle-Group": "g"}
            assert await ask(client, talks[name], extra_headers=tag) == (name, str(step))
    untagged: list[Any] = [{"role": "user", "content": "Sampled twice."}]
    await ask(client, list(untagged))
    await gateway.at_rest()

    # One step is in the making when the gateway dies.
    cut = asyncio.create_task(
        client.chat.completions.create(
            model=MODEL,
            messages=talks["agent-a"],
            max_tokens=20_000,
            extra_headers={"X-Heddle-Trajectory-Id": "agent-a"},
        )
    )

    async def runs() -> bool:
        return bool((await engine.load(gateway.http))["num_running_reqs"])

    await until(runs, "the step at the engine")
    await gateway.part.kill()
    with pytest.raises(openai.APIConnectionError):
        await cut

    again = await parts.gateway([engine.url], *database)
    client = parts.client(again, max_retries=0)
    for step in range(3, 5):
        for name in names:
            named = client.with_options(base_url=f"{again.url}/t/{name}/v1")
            assert await ask(named, talks[name]) == (name, str(step))
    await ask(client, untagged)
    await again.at_rest()
    for name in names:
        steps = await again.steps(name)
        assert [(one["step"], one["outcome"], one["group_id"]) for one in steps] == [
            (number, "done", "g") for number in range(5)
        ]
    # The two samples of one prompt, before and after, are two in one group.
    found = [one for one in await again.trajectories() if one["trajectory_id"] not in names]
    assert sorted(one["sample"] for one in found) == [0, 1]
    assert len({one["group_id"] for one in found}) == 1
    await again.is_sound()

    async def engine_rests() -> bool:
        load = await engine.load(again.http)
        return (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)

    await until(engine_rests, "the engine to hear that the first gateway's step has no reader")


async def test_a_history_that_cannot_be_read_keeps_no_gateway_from_starting(
    parts: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 1000)
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    gateway = await parts.gateway([engine.url], "--database", str(broken))
    talk: list[Any] = [{"role": "user", "content": "Task."}]
    client = parts.client(gateway, max_retries=0).with_options(base_url=f"{gateway.url}/t/x/v1")
    assert await ask(client, talk) == ("x", "0")
    assert (await gateway.http.get("/health")).status_code == 200
    assert "not taken up" in gateway.part.log.read_text()
