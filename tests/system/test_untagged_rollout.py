"""96 untagged agents of 6 prompts, 16 samples each, through the plain openai SDK over a network that fails.

Every agent must come out as one trajectory of its own with exactly its steps, read back through the admin
API: while some compact their history in mid-run, while the SDK repeats what the network broke, and when
siblings get word-identical answers.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import openai
import pytest

from .failing_network import FailingNetwork, Fate

pytestmark = pytest.mark.system

MODEL = "loom-8b"
PROMPTS = 6
SAMPLES = 16
AGENTS = PROMPTS * SAMPLES
SYSTEM = "You are a careful agent. Use the tool, then answer. Keep to the style of the code around."
# Longer than any answer takes on a machine that is busy with other things: the SDK gives up on its own only
# where an answer is held back.
SDK_TIMEOUT_S = 60.0
STALLED_TIMEOUT_S = 4.0
SPEED = 20.0
# Takes a worker of MP degree 1 twice as long, at the least: 6.5 ms a token.
OPENING_TOKENS = 320
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "run_command",
            "description": "Run a command in the shell.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]

# ------------------------------------------------------------------------------------------------- agents


class Compaction(StrEnum):
    """How an agent shortens its history."""

    OWN_SUMMARY = "system and the model's own summary"
    TASK_AND_LAST = "system, task, a note, and the last exchange"
    TASK_SUMMARY_LAST = "system, task, the model's own summary, and the last exchange"
    TRIMMED_RESULTS = "all messages, old tool results cut to a stub"


@dataclass
class Plan:
    """What an agent will do: so many steps, compacting before step ``compact_at``."""

    steps: int
    compaction: Compaction | None
    compact_at: int
    uses_tools: bool
    streams: bool


@dataclass
class Agent:
    """One agent with a history of messages, as frameworks keep it."""

    number: int
    client: openai.AsyncOpenAI
    plan: Plan
    temperature: float
    patience_s: float = SDK_TIMEOUT_S
    """How long the SDK waits past the opening: whose opening was given up, nobody could tell."""
    messages: list[Any] = field(default_factory=list)
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Trajectory id and step that each answer came with."""

    def __post_init__(self) -> None:
        task = f"Task {self.number % PROMPTS}: mend the parser of module {self.number % PROMPTS}."
        self.messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]

    async def run(self) -> None:
        summary = ""
        for step in range(self.plan.steps):
            if step == self.plan.compact_at:
                self.compact(summary)
            sums_up = (
                self.plan.compaction is Compaction.OWN_SUMMARY
                and step + 1 == self.plan.compact_at < self.plan.steps
            )
            if sums_up:
                self.messages.append({"role": "user", "content": "Stop here and sum up what you have done."})
            answer = await self.ask(12 + 3 * step if step else OPENING_TOKENS, calls_allowed=not sums_up)
            summary = answer.get("content") or summary
            await asyncio.sleep(random.uniform(0, 0.05))  # the tool
            self.take(answer, step)

    async def ask(self, tokens: int, *, calls_allowed: bool) -> dict[str, Any]:
        wanted: dict[str, Any] = {"model": MODEL, "max_tokens": tokens, "temperature": self.temperature}
        if self.plan.uses_tools:
            wanted |= {"tools": TOOLS, "tool_choice": "auto" if calls_allowed else "none"}
        create = self.client.chat.completions.with_raw_response.create
        patience_s = self.patience_s if self.seen else SDK_TIMEOUT_S
        raw = await create(messages=self.messages, stream=self.plan.streams, timeout=patience_s, **wanted)
        message = await _read_stream(raw.parse()) if self.plan.streams else _message(raw.parse())
        self.seen.append((raw.headers["x-heddle-trajectory-id"], int(raw.headers["x-heddle-step"])))
        return message

    def take(self, answer: dict[str, Any], step: int) -> None:
        self.messages.append(answer)
        calls = answer.get("tool_calls", ())
        for call in calls:
            result = f"result of step {step}: " + "and so on " * 5
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not calls:
            self.messages.append({"role": "user", "content": f"Go on with part {step}."})

    def compact(self, summary: str) -> None:
        opening, rest = self.messages[:2], self.messages[2:]
        last = max(place for place, one in enumerate(rest) if one["role"] == "assistant")
        match self.plan.compaction:
            case Compaction.OWN_SUMMARY:
                said = rest[last]["content"]
                self.messages = [opening[0], {"role": "user", "content": f"What happened so far:\n{said}"}]
            case Compaction.TASK_AND_LAST:
                note = {"role": "user", "content": "Older steps are left out."}
                self.messages = [*opening, note, *rest[last:]]
            case Compaction.TASK_SUMMARY_LAST:
                note = {"role": "user", "content": f"Summary of older steps:\n{summary}"}
                self.messages = [*opening, note, *rest[last:]]
            case Compaction.TRIMMED_RESULTS:
                for one in rest[:last]:
                    if one["role"] != "assistant":
                        one["content"] = "[cut]"


def _message(completion: Any) -> dict[str, Any]:
    """The answer as frameworks write it back."""
    message: dict[str, Any] = completion.choices[0].message.model_dump(
        exclude_none=True, include={"role", "content", "tool_calls"}
    )
    return message


async def _read_stream(stream: Any) -> dict[str, Any]:
    content, calls = "", {}
    async for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"name": "", "arguments": ""})
                call["id"] = part.id or call.get("id")
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(json.loads(call["arguments"]))},
            }
            for _, call in sorted(calls.items())
        ]
    return message


def plan_of(dice: random.Random, *, uses_tools: bool, streams: bool) -> Plan:
    steps = dice.randint(2, 6)
    compaction = dice.choice([None, *Compaction])
    compact_at = dice.randint(2, steps - 1) if compaction is not None and steps > 2 else steps
    return Plan(steps, compaction, compact_at, uses_tools, streams)


# -------------------------------------------------------------------------------------------------- tests


@dataclass
class Rollout:
    """What is left of a rollout."""

    agents: list[Agent]
    trajectories: list[Any]
    records: dict[str, list[Any]]
    fates: Counter[Fate]
    stats: Any
    moves: int


async def run_rollout(parts: Any, agents: Callable[[openai.AsyncOpenAI], list[Agent]], fate: Any) -> Rollout:
    engines = await parts.run(
        "emulate", "--tp", "1,1", "--base-port", "0", "--speed", str(SPEED), "--model", MODEL
    )
    urls = json.loads(await engines.line("ready"))["workers"]
    gateway = await parts.gateway(urls)
    async with FailingNetwork(gateway.http.base_url.port, fate) as network:
        async with openai.AsyncOpenAI(
            base_url=network.base_url, api_key="unused", timeout=SDK_TIMEOUT_S, max_retries=6
        ) as client:
            team = agents(client)
            async with asyncio.TaskGroup() as running:
                for agent in team:
                    running.create_task(agent.run())
        stats = await gateway.at_rest()
        trajectories = await gateway.trajectories()
        records = {one["trajectory_id"]: await gateway.steps(one["trajectory_id"]) for one in trajectories}
        await gateway.is_sound()
        moves = await gateway.ended_moves()
        assert moves is not None
        return Rollout(team, trajectories, records, network.fates, stats, moves)


def check_numbers(rollout: Rollout) -> None:
    """As many trajectories as agents, in groups of samples, each with all its steps and no other."""
    assert len(rollout.trajectories) == AGENTS
    assert Counter(one["steps"] for one in rollout.trajectories) == Counter(
        agent.plan.steps for agent in rollout.agents
    )
    groups: dict[str, set[int]] = {}
    for one in rollout.trajectories:
        groups.setdefault(one["group_id"], set()).add(one["sample"])
    assert len(groups) == PROMPTS
    assert all(samples == set(range(SAMPLES)) for samples in groups.values())
    for one in rollout.trajectories:
        steps = {record["step"] for record in rollout.records[one["trajectory_id"]]}
        assert steps == set(range(one["steps"])), one["trajectory_id"]
    written = sum(len(records) for records in rollout.records.values())
    assert written == rollout.stats["steps"]["started"] == sum(rollout.stats["steps"]["ended"].values())
    assert rollout.stats["history"]["written"] == written + rollout.moves


class Deck:
    """Deals fates in a random order, but so many of each in every hundred."""

    def __init__(self, **hundredths: int) -> None:
        self._all = [Fate[name.upper()] for name, count in hundredths.items() for _ in range(count)]
        self._all += [Fate.PASS] * (100 - len(self._all))
        self._left: list[Fate] = []

    def deal(self) -> Fate:
        if not self._left:
            self._left = random.sample(self._all, len(self._all))
        return self._left.pop()


class BrokenAtRandom:
    """Most requests pass. Answers get lost past the opening only: before it, siblings show the same, and
    nobody could tell whose answer was lost.
    """

    def __init__(self) -> None:
        self._openings = Deck(cut=8)
        self._later = Deck(cut=8, lose=8, stall=1)

    def __call__(self, retry: int, turns: int) -> Fate:
        if retry >= 2:
            return Fate.PASS
        return (self._later if turns else self._openings).deal()


def cut_at_random(retry: int, turns: int) -> Fate:
    """Siblings that answer alike show the same for ever: whose answer was lost, nobody could tell."""
    return Fate.CUT if retry < 2 and random.random() < 0.12 else Fate.PASS


async def test_each_agent_is_one_trajectory_with_its_own_steps(parts: Any) -> None:
    dice = random.Random(1)

    def agents(client: openai.AsyncOpenAI) -> list[Agent]:
        return [
            Agent(
                number,
                client,
                plan_of(dice, uses_tools=number % 2 == 0, streams=number % 3 == 0),
                temperature=1.0,
                patience_s=STALLED_TIMEOUT_S,
            )
            for number in range(AGENTS)
        ]

    rollout = await run_rollout(parts, agents, BrokenAtRandom())
    check_numbers(rollout)
    owners: dict[str, int] = {}
    for agent in rollout.agents:
        assert [step for _, step in agent.seen] == list(range(agent.plan.steps)), agent.number
        # The first step's answer may be a sibling's: a repeated opening shows nothing of its own.
        for trajectory_id, _ in agent.seen[1:]:
            assert owners.setdefault(trajectory_id, agent.number) == agent.number
    for records in rollout.records.values():
        answered = {record["step"] for record in records if record["outcome"] == "done"}
        assert answered == {record["step"] for record in records}
    segments = {one["trajectory_id"]: one["segments"] for one in rollout.trajectories}
    for agent in rollout.agents:
        compacted = agent.plan.compact_at < agent.plan.steps
        trimmed = agent.plan.compaction is Compaction.TRIMMED_RESULTS
        if not (compacted and trimmed):
            assert segments[agent.seen[-1][0]] == 1 + compacted, agent.plan
    # The network did its worst, and the SDK repeated what it broke.
    assert min(rollout.fates[fate] for fate in (Fate.CUT, Fate.LOSE, Fate.STALL)) > 0
    assert sum(record["retries"] > 0 for records in rollout.records.values() for record in records) > 10


async def test_siblings_that_answer_alike_stay_as_many_as_they_are(parts: Any) -> None:
    def agents(client: openai.AsyncOpenAI) -> list[Agent]:
        plans = [
            plan_of(random.Random(f"alike {prompt}"), uses_tools=prompt % 2 == 0, streams=prompt % 3 == 0)
            for prompt in range(PROMPTS)
        ]
        return [Agent(number, client, plans[number % PROMPTS], temperature=0.0) for number in range(AGENTS)]

    rollout = await run_rollout(parts, agents, cut_at_random)
    check_numbers(rollout)
    for agent in rollout.agents:
        assert [step for _, step in agent.seen] == list(range(agent.plan.steps)), agent.number
    said = Counter(
        json.dumps([one.get("content") for one in agent.messages if one["role"] == "assistant"])
        for agent in rollout.agents
    )
    assert max(said.values()) == SAMPLES, "the workers did not answer siblings alike"


async def test_agents_that_were_started_before_the_gateway_are_each_one_trajectory(
    parts: Any, unused_port: int
) -> None:
    engine = await parts.engine("--speed", "50", "--model", MODEL)
    base_url = f"http://127.0.0.1:{unused_port}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=30) as client:
        agents = [
            Agent(number, client, Plan(2, None, 2, uses_tools=False, streams=False), temperature=1.0)
            for number in range(2 * PROMPTS)
        ]
        async with asyncio.TaskGroup() as running:
            for agent in agents:
                running.create_task(agent.run())
            gateway = await parts.gateway([engine.url], port=unused_port)
    await gateway.at_rest()
    assert len({agent.seen[0][0] for agent in agents}) == len(agents)
    assert [[step for _, step in agent.seen] for agent in agents] == [[0, 1]] * len(agents)
    trajectories = await gateway.trajectories()
    assert Counter(one["steps"] for one in trajectories) == {2: len(agents)}
    await gateway.is_sound()
