"""A rollout of agents that do what SDKs do: a request that got no whole answer is sent again."""

import asyncio
import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, get_args

import httpx
import pytest

MODEL = "loom-8b"
AGENTS = 24
MORE = 2
AGAIN_S = 0.1
TOOL_S = 0.15
WAIT_S = 60.0

Tag = Literal["url", "header", "none"]
_rollouts = count()


class Trouble(Exception):
    """No whole answer came."""


@dataclass(frozen=True)
class Answer:
    """A whole answer, as the agent has it."""

    trajectory_id: str
    step: int
    worker: str
    cached_tokens: int


@dataclass
class Agent:
    """One trajectory. Every third one has its id in the URL, in a header, or nowhere; every other streams."""

    number: int
    name: str
    http: httpx.AsyncClient
    prompt: str
    answers: list[Answer] = field(default_factory=list)
    troubles: int = 0
    """Requests that had to be sent again."""
    talk: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.talk = [{"role": "user", "content": self.prompt}]

    @property
    def tag(self) -> Tag:
        return get_args(Tag)[self.number % 3]

    @property
    def streams(self) -> bool:
        return self.number % 2 == 0

    async def run(self, over: asyncio.Event, more: int) -> None:
        """Steps until ``over``, then so many more."""
        while more:
            more -= over.is_set()
            await self.step()
            await asyncio.sleep(TOOL_S * (1 + self.number % 4))  # the tool

    async def step(self) -> Answer:
        """One step, however often it has to be asked for."""
        for attempt in count():
            try:
                return await self._ask(attempt)
            except (httpx.TransportError, Trouble):
                self.troubles += 1
                await asyncio.sleep(AGAIN_S)
        raise AssertionError

    async def _ask(self, attempt: int) -> Answer:
        path = f"/t/{self.name}/v1/chat/completions" if self.tag == "url" else "/v1/chat/completions"
        headers = {"x-stainless-retry-count": str(attempt)}
        if self.tag == "header":
            headers["x-heddle-trajectory-id"] = self.name
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": self.talk,
            "max_tokens": 20 + 7 * (self.number % 5),
            "stream": self.streams,
        }
        if self.streams:
            body["stream_options"] = {"include_usage": True}
        async with self.http.stream("POST", path, json=body, headers=headers) as response:
            raw = await response.aread()
        if response.status_code in {429, 502, 503, 504}:
            raise Trouble(raw)
        assert response.status_code == 200, raw
        content, usage = _of_stream(raw) if self.streams else _of_whole(raw)
        self.talk += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
        answer = Answer(
            response.headers["x-heddle-trajectory-id"],
            int(response.headers["x-heddle-step"]),
            response.headers["x-heddle-worker"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        )
        self.answers.append(answer)
        return answer


def _of_whole(raw: bytes) -> tuple[str, dict[str, Any]]:
    answer = json.loads(raw)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] in {"length", "stop"}
    return choice["message"]["content"], answer["usage"]


def _of_stream(raw: bytes) -> tuple[str, dict[str, Any]]:
    content, usage, is_whole = "", {}, False
    for line in raw.decode().splitlines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            is_whole = True
            break
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise Trouble(line)
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
    if not is_whole:
        raise Trouble("the stream broke off")
    return content, usage


class Rollout:
    """``async with``: agents run in the background; leaving it waits until each has had ``MORE`` steps."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._over = asyncio.Event()
        self._group = asyncio.TaskGroup()
        run = next(_rollouts)
        # Two agents of one group share a prompt, as samples do.
        self._by_themselves = [
            Agent(number, f"run-{run}/agent-{number}", self._http, f"Run {run}: solve task {number // 6}.")
            for number in range(AGENTS)
        ]
        self.agents = list(self._by_themselves)

    def another(self, name: str, prompt: str) -> Agent:
        """One more, which the test leads step by step. It is named in the URL and does not stream."""
        agent = Agent(3, name, self._http, prompt)
        self.agents.append(agent)
        return agent

    async def __aenter__(self) -> "Rollout":
        await self._group.__aenter__()
        for agent in self._by_themselves:
            self._group.create_task(agent.run(self._over, MORE))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._over.set()
        try:
            async with asyncio.timeout(2 * WAIT_S):
                await self._group.__aexit__(*error)
        except TimeoutError:
            pytest.fail(f"not every trajectory ends: {[len(agent.answers) for agent in self.agents]}")

    async def all_have(self, steps: int) -> None:
        """Waits until each agent has at least so many answers."""
        async with asyncio.timeout(2 * WAIT_S):
            while self.least < steps:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    @property
    def least(self) -> int:
        """Answers that the slowest agent has."""
        return min(len(agent.answers) for agent in self._by_themselves)

    @property
    def troubles(self) -> int:
        return sum(agent.troubles for agent in self.agents)
