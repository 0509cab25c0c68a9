"""A GRPO rollout of untagged agents against the book: 6 prompts, 16 samples each, everything that happens
at once.

Requests, endings and retries interleave at random in virtual time. Two forms: with answers that differ
between samples every request must find its own agent's trajectory, from its first answer on (before it,
samples of a prompt show nothing that tells them apart, and failed attempts may change places); with answers
that siblings share word for word, agents with equal histories are interchangeable, so only the numbers must
be right: as many trajectories as agents, each request the right step.
"""

import heapq
import random
from collections.abc import Iterator
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_gateway.identity import Identity

PROMPTS = 6
SAMPLES = 16
FAILURES = [Outcome.ABORTED, Outcome.WORKER_LOST, Outcome.TIMED_OUT]
SYSTEM = "You are a careful agent. Use the tool, then answer."


class Agent:
    """One agent: yields what it does, in order. ``distinct``: its answers are its own."""

    def __init__(self, number: int, chat: Any, dice: random.Random, *, distinct: bool, tools: bool) -> None:
        self.number = number
        self.chat = chat
        self.dice = dice
        self.distinct = distinct
        self.tools = tools
        self.steps = dice.randint(1, 8)
        # Word-identical siblings must compact alike, or their next histories show things that no one can
        # tell.
        planner = dice if distinct else random.Random(number % PROMPTS)
        self.compact_at = planner.choice([None, None, 3, 4, 5])
        self.history = [chat.system(SYSTEM), chat.user(f"Task {number % PROMPTS}: mend the parser.")]
        self.step = 0
        self.segment = 0

    def words(self) -> str:
        mark = f"agent {self.number}, " if self.distinct else ""
        return f"{mark}step {self.step}: I looked at the file and found the loop that reads too far."

    def answer(self) -> dict[str, Any]:
        if self.tools and self.step % 2:
            # Some servers number calls per conversation: ids that all siblings share.
            call = f"call_{self.number if self.distinct else ''}_{self.step}"
            return self.chat.says(self.dice.choice([None, ""]), (call, '{"command": "ls", "n": 1.0}'))
        return self.chat.says(self.words())

    def written_back(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The same message as another JSON writer has it."""
        again = dict(reversed(answer.items()))
        if again.get("content") is None:
            again.pop("content")
        for call in again.get("tool_calls", ()):
            call["function"] = {"arguments": '{"n":1,"command":"ls"}', "name": "bash"}
        again["refusal"] = None
        return again

    def take(self, answer: dict[str, Any]) -> None:
        """The step is done: the history grows, or is compacted."""
        said = self.written_back(answer)
        tail = [said]
        if "tool_calls" in said:
            tail.append(self.chat.result(said["tool_calls"][0]["id"], f"output {self.step}"))
        else:
            tail.append(self.chat.user(f"go on {self.step}"))
        self.step += 1
        if self.step == self.compact_at:
            self.segment += 1
            if "tool_calls" in said:
                self.history = [*self.history[:2], self.chat.user("Older steps left out."), *tail]
            else:
                self.history = [
                    *self.history[:2],
                    self.chat.user(f"What happened so far:\n{said['content']}"),
                ]
        else:
            self.history = [*self.history, *tail]


class Rollout:
    """Runs all agents; checks each identity as it comes."""

    def __init__(self, caller: Any, chat: Any, seed: int, *, distinct: bool, tools: bool) -> None:
        self.caller = caller
        self.dice = random.Random(seed)
        self.distinct = distinct
        self.agents = [
            Agent(number, chat, random.Random(f"{seed}/{number}"), distinct=distinct, tools=tools)
            for number in range(PROMPTS * SAMPLES)
        ]
        self.seen: list[Identity] = []
        self.told_apart: list[tuple[int, str]] = []
        self.begun: set[int] = set()

    def run(self) -> None:
        # (time, tie-breaker, what goes on then)
        agenda: list[tuple[float, int, Iterator[float]]] = []
        for number, agent in enumerate(self.agents):
            agenda.append((self.dice.random() * 3, number, self.life(agent)))
        heapq.heapify(agenda)
        while agenda:
            at, number, life = heapq.heappop(agenda)
            pause = next(life, None)
            if pause is not None:
                heapq.heappush(agenda, (at + pause, number, life))

    def life(self, agent: Agent) -> Iterator[float]:
        while agent.step < agent.steps:
            yield from self.one_step(agent)
            yield self.dice.choice([0.0, 0.01, 1.0])

    def one_step(self, agent: Agent) -> Iterator[float]:
        marked = repeats = 0
        while True:
            headers = {"x-stainless-retry-count": str(marked)}
            who = self.caller.ask(agent.history, headers=headers)
            self.seen.append(who)
            if agent.step:
                self.told_apart.append((agent.number, who.trajectory_id))
            self.begun.add(agent.number)
            assert who.step == agent.step, (who, agent.number)
            assert who.segment == agent.segment, (who, agent.number)
            if marked or self.distinct:
                assert who.retry_of_step == (repeats > 0), (who, agent.number)
            yield self.dice.random() * 2
            fate = self.dice.random()
            answer = agent.answer()
            repeats += 1
            if fate < 0.1:
                # Failed before its first byte: the SDK repeats it and says so.
                self.caller.break_off(who, self.dice.choice(FAILURES))
                marked += 1
            elif fate < 0.15 and self.all_siblings_begun(agent):
                # A broken stream is repeated by the agent itself, unmarked. Before all samples have begun
                # nobody could tell such a repeat from a new sample of the prompt.
                half = agent.chat.says((answer["content"] or "")[:9])
                self.caller.answer(who, half, outcome=self.dice.choice(FAILURES))
                marked = 0
            elif fate < 0.2 and agent.step and self.distinct:
                # Done, but the answer was lost on its way to the client. (Where siblings show the same
                # history, any of them may be meant by the repeat.)
                self.caller.answer(who, answer)
                marked += 1
            else:
                self.caller.answer(who, answer)
                self.told_apart.append((agent.number, who.trajectory_id))
                agent.take(answer)
                return
            yield self.dice.random() if self.distinct else 0.0

    def all_siblings_begun(self, agent: Agent) -> bool:
        return all(
            number in self.begun for number in range(agent.number % PROMPTS, len(self.agents), PROMPTS)
        )


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_request_finds_its_own_agent(caller, chat, seed, tools) -> None:
    rollout = Rollout(caller, chat, seed, distinct=True, tools=tools)
    rollout.run()
    agent_of: dict[str, int] = {}
    for number, trajectory_id in rollout.told_apart:
        assert agent_of.setdefault(trajectory_id, number) == number
    assert len(agent_of) == PROMPTS * SAMPLES
    assert len(caller.book) == PROMPTS * SAMPLES
    groups = {who.group_id for who in rollout.seen}
    assert len(groups) == PROMPTS
    for group in groups:
        samples = {who.sample for who in rollout.seen if who.group_id == group}
        assert samples == set(range(SAMPLES))


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_siblings_that_answer_alike_keep_their_numbers(caller, chat, seed, tools) -> None:
    rollout = Rollout(caller, chat, seed, distinct=False, tools=tools)
    rollout.run()
    assert len({who.trajectory_id for who in rollout.seen}) == PROMPTS * SAMPLES
    assert len(caller.book) == PROMPTS * SAMPLES
    assert sum(who.is_new for who in rollout.seen) == PROMPTS * SAMPLES
