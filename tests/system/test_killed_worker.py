"""kill -9 of one worker in mid-rollout: nobody loses a trajectory, and most notice nothing."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"
AGENTS = 24
STEPS = 4
TOKENS = 120
SPEED = 1.0


@dataclass
class Agent:
    """Sends its history step by step. One that streams repeats a step whose stream broke; one that does not
    has no patience with any error.
    """

    number: int
    client: openai.AsyncOpenAI
    streams: bool
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Trajectory and step of each whole answer."""
    broken: list[tuple[str, int]] = field(default_factory=list)
    """The same of each stream that broke."""
    streaming_from: str | None = None
    """The worker whose stream it is in the middle of."""
    chunks: int = 0
    """What it has of that stream."""

    async def run(self, steps: int = STEPS) -> None:
        messages: list[Any] = [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": f"Task {self.number}."},
        ]
        for step in range(steps):
            content = await self.answer(messages)
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": f"Go on with part {step}."})

    async def answer(self, messages: list[Any]) -> str:
        create = self.client.chat.completions.with_raw_response.create
        wanted: Any = {"model": MODEL, "messages": messages, "max_tokens": TOKENS}
        if not self.streams:
            raw = await create(**wanted)
            self.seen.append(_place(raw))
            return raw.parse().choices[0].message.content or ""
        while True:
            raw = await create(stream=True, **wanted)
            try:
                content = await self.read(raw)
            except openai.APIError:
                self.broken.append(_place(raw))
                continue
            finally:
                self.streaming_from = None
            self.seen.append(_place(raw))
            return content

    async def read(self, raw: Any) -> str:
        content, finish, self.chunks = "", None, 0
        async for chunk in raw.parse():
            self.streaming_from = raw.headers["x-heddle-worker"]
            self.chunks += 1
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
        assert finish == "stop", "a broken stream looks whole"
        return content


def _place(raw: Any) -> tuple[str, int]:
    return raw.headers["x-heddle-trajectory-id"], int(raw.headers["x-heddle-step"])


async def test_a_killed_worker_costs_no_trajectory_and_comes_back(parts: Any, until: Any) -> None:
    engines = [await parts.engine("--speed", str(SPEED), "--model", MODEL, "--slots", "16") for _ in "123"]
    gateway = await parts.gateway([engine.url for engine in engines])
    client = parts.client(gateway, max_retries=0)
    victim = engines[0]
    agents = [Agent(number, client, streams=number % 2 == 0) for number in range(AGENTS)]

    async def answers_both_ways() -> bool:
        load = await victim.load(gateway.http)
        streams = [agent for agent in agents if agent.streaming_from == victim.name]
        begun = [agent for agent in streams if agent.chunks < TOKENS / 10]
        return len(begun) >= 2 and load["num_running_reqs"] >= len(streams) + 2

    async with asyncio.TaskGroup() as running:
        for agent in agents:
            running.create_task(agent.run())
        await until(answers_both_ways, "streams and whole answers in the making on the victim")
        cut = [agent for agent in agents if agent.streaming_from == victim.name]
        await victim.kill()

    # Those that do not stream would have raised. Of the others each saw one error at most.
    assert all(len(agent.broken) <= 1 for agent in agents)
    assert sum(len(agent.broken) for agent in cut) >= 1
    for agent in agents:
        (trajectory_id,) = {trajectory_id for trajectory_id, _ in agent.seen}
        assert [step for _, step in agent.seen] == list(range(STEPS))
        # The repeat of a broken step was the same step: no number is missing, none is there twice.
        assert {broken for broken, _ in agent.broken} <= {trajectory_id}

    stats = await gateway.at_rest()
    trajectories = await gateway.trajectories()
    assert {one["trajectory_id"] for one in trajectories} == {agent.seen[0][0] for agent in agents}
    assert {one["steps"] for one in trajectories} == {STEPS}
    broken = sum(len(agent.broken) for agent in agents)
    ended = stats["steps"]["ended"]
    assert (ended["done"], ended["worker_lost"]) == (AGENTS * STEPS, broken)
    assert sum(ended.values()) == AGENTS * STEPS + broken
    records = {agent.number: await gateway.steps(agent.seen[0][0]) for agent in agents}
    for agent in agents:
        lost = [one for one in records[agent.number] if one["outcome"] == "worker_lost"]
        assert [one["step"] for one in lost] == [step for _, step in agent.broken]
        repeats = [one for one in records[agent.number] if one["retries"]]
        assert [(one["step"], one["outcome"]) for one in repeats] == [
            (step, "done") for _, step in agent.broken
        ]
    # Whole answers that were in the making went to another worker within the same request.
    moved = [one for agent in agents if not agent.streams for one in records[agent.number]]
    assert any(one["attempts"] > 1 for one in moved)
    assert {one["outcome"] for one in moved} == {"done"}
    for engine in engines[1:]:
        load = await engine.load(gateway.http)
        assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
    await gateway.is_sound()

    async def is_down() -> bool:
        return (await gateway.worker(victim))["state"] == "down"

    await until(is_down, "the killed worker to be out of service")
    await victim.start()
    await gateway.serves(victim, generation=2)
    later = [Agent(AGENTS + number, client, streams=False) for number in range(AGENTS)]
    await asyncio.gather(*(agent.run(1) for agent in later))
    await gateway.at_rest()
    used = {(await gateway.steps(agent.seen[0][0]))[0]["worker"] for agent in later}
    assert victim.name in used
    await gateway.is_sound()


async def test_without_any_worker_left_agents_are_told_to_come_back_and_their_step_goes_on(
    parts: Any, until: Any
) -> None:
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    gateway = await parts.gateway([engine.url])
    client = parts.client(gateway, max_retries=0)
    agent = Agent(0, client, streams=False)
    messages: Any = [{"role": "user", "content": "Task."}]
    content = await agent.answer(messages)
    await engine.kill()
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
    with pytest.raises(openai.InternalServerError) as caught:
        await agent.answer(messages)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.response.headers["x-heddle-step"] == "1"
    await engine.start()
    await gateway.serves(engine, generation=2)
    await agent.answer(messages)
    assert [step for _, step in agent.seen] == [0, 1]
    await gateway.at_rest()
    steps = await gateway.steps(agent.seen[0][0])
    assert [(one["step"], one["outcome"]) for one in steps] == [(0, "done"), (1, "rejected"), (1, "done")]
    await gateway.is_sound()
