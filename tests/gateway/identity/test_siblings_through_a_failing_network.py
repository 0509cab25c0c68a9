"""Samples of one prompt that answer word for word alike, through an SDK that repeats what a network broke.

In virtual time, with the SDK's own waits. Which sibling is which nobody can tell, and nobody need: they are
interchangeable. What must be right are the numbers: as many trajectories as agents, each with all its steps
and segments, whatever of the first attempts was cut in mid-answer or never came here, before and after a
compaction.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from heddle_gateway.identity import Identity

PROMPTS = 3
SAMPLES = 8
LATEST_CUT_S = 0.05
# openai-python, _calculate_retry_timeout: half a second, doubled each time, less a quarter of jitter.
FIRST_WAIT_S = (0.375, 0.5)


class Fate(Enum):
    PASS = "pass"
    CUT = "cut"
    """The gateway sees the client leave before its answer."""
    NEVER_CAME = "never came"


class Compaction(Enum):
    OWN_SUMMARY = "own summary"
    TASK_AND_LAST = "task and last"
    TASK_SUMMARY_LAST = "task, summary and last"
    TRIMMED_RESULTS = "trimmed results"


@dataclass(frozen=True)
class Plan:
    """What all samples of a prompt do."""

    steps: int
    compaction: Compaction | None
    compact_at: int
    calls_tools: bool


class Agent:
    def __init__(self, number: int, plan: Plan, chat: Any) -> None:
        self.number = number
        self.plan = plan
        self.chat = chat
        self.history = chat.opening(f"Task {number % PROMPTS}: mend the parser.")
        self.step = 0
        self.segment = 0

    def answer(self) -> Any:
        if self.plan.calls_tools and self.step % 2:
            return self.chat.says(None, (f"call_{self.step}", "{}"))
        words = "I looked at the file and found the loop that reads too far."
        return self.chat.says(f"Task {self.number % PROMPTS}, step {self.step}: {words}")

    def take(self, answer: Any) -> None:
        self.history = [*self.history, answer]
        if "tool_calls" in answer:
            self.history.append(self.chat.result(answer["tool_calls"][0]["id"], f"output {self.step}"))
        else:
            self.history.append(self.chat.user(f"go on {self.step}"))
        self.step += 1
        if self.plan.compaction is not None and self.step == self.plan.compact_at < self.plan.steps:
            self.segment += 1
            self.compact(self.plan.compaction, answer)

    def compact(self, compaction: Compaction, answer: Any) -> None:
        system, task, *rest = self.history
        older, last = rest[:-2], rest[-2:]
        user = self.chat.user
        if compaction is Compaction.OWN_SUMMARY and answer["content"]:
            self.history = [system, user(f"What happened so far:\n{answer['content']}")]
        elif compaction is Compaction.TASK_SUMMARY_LAST:
            self.history = [system, task, user(f"Summary of older steps:\n{older[0]['content']}"), *last]
        elif compaction is Compaction.TRIMMED_RESULTS:
            cut = [one if one["role"] == "assistant" else {**one, "content": "[cut]"} for one in older]
            self.history = [system, task, *cut, *last]
        else:
            self.history = [system, task, user("Older steps are left out."), *last]


class Rollout:
    """Runs all agents; checks each identity as it comes."""

    def __init__(self, caller: Any, chat: Any, seed: int) -> None:
        self.caller = caller
        self.dice = random.Random(seed)
        self.now = 0.0
        plans = [self.plan() for _ in range(PROMPTS)]
        self.agents = [Agent(at, plans[at % PROMPTS], chat) for at in range(PROMPTS * SAMPLES)]
        self.steps: dict[str, set[int]] = {}

    def plan(self) -> Plan:
        dice = self.dice
        steps = dice.randint(2, 6)
        compact_at = dice.randint(2, max(2, steps - 1))
        return Plan(steps, dice.choice([None, *Compaction]), compact_at, dice.random() < 0.5)

    def run(self) -> None:
        spread = self.dice.choice([0.05, 0.5])
        # (time, tie-breaker, what goes on then)
        agenda: list[tuple[float, int, Iterator[float]]] = [
            (self.dice.random() * spread, agent.number, self.life(agent)) for agent in self.agents
        ]
        heapq.heapify(agenda)
        while agenda:
            self.now, number, life = heapq.heappop(agenda)
            pause = next(life, None)
            if pause is not None:
                heapq.heappush(agenda, (self.now + pause, number, life))

    def life(self, agent: Agent) -> Iterator[float]:
        while agent.step < agent.plan.steps:
            yield from self.one_step(agent)
            agent.take(agent.answer())
            yield self.dice.uniform(0.0, 0.05)  # the tool

    def one_step(self, agent: Agent) -> Iterator[float]:
        for repeat in range(3):
            fate = self.fate(repeat)
            if fate is Fate.NEVER_CAME:
                yield self.dice.uniform(0.0, LATEST_CUT_S)
            else:
                who = self.ask(agent, repeat)
                # Openings take longer than any cut waits: whose answer was lost there, nobody could tell.
                takes = self.dice.uniform(0.005 if agent.step else 0.1, 0.3)
                if fate is Fate.PASS:
                    yield takes
                    self.set_clock()
                    self.caller.answer(who, agent.answer())
                    return
                yield self.dice.uniform(0.0, min(LATEST_CUT_S, takes))
                yield self.dice.choice([0.0, 0.05])  # until the gateway sees it
                self.set_clock()
                self.caller.break_off(who)
            yield self.dice.uniform(*FIRST_WAIT_S) * 2**repeat

    def fate(self, repeat: int) -> Fate:
        if repeat == 2:
            return Fate.PASS
        [fate] = self.dice.choices([Fate.PASS, Fate.CUT, Fate.NEVER_CAME], [80, 10, 10])
        return fate

    def ask(self, agent: Agent, repeat: int) -> Identity:
        self.set_clock()
        who: Identity = self.caller.ask(agent.history, headers={"x-stainless-retry-count": str(repeat)})
        assert (who.step, who.segment) == (agent.step, agent.segment), (who, agent.number)
        self.steps.setdefault(who.trajectory_id, set()).add(who.step)
        return who

    def set_clock(self) -> None:
        self.caller.now = self.now - 1.0  # the caller adds a second to each call


@pytest.mark.parametrize("seed", range(150))
def test_numbers_stay_right(caller, chat, seed) -> None:
    rollout = Rollout(caller, chat, seed)
    rollout.run()
    assert len(rollout.steps) == PROMPTS * SAMPLES
    assert Counter(len(steps) for steps in rollout.steps.values()) == Counter(
        agent.plan.steps for agent in rollout.agents
    )
