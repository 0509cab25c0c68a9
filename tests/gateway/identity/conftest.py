"""A caller of the trajectory book: writes requests and answers as JSON, as clients and workers do."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_core import Answer, read_answer, scan_body
from heddle_gateway.identity import Identity, RequestFacts, TrajectoryBook, tenant_of

Message = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}


class Chat:
    """Messages as clients write them."""

    @staticmethod
    def system(content: str) -> Message:
        return {"role": "system", "content": content}

    @staticmethod
    def user(content: str) -> Message:
        return {"role": "user", "content": content}

    @staticmethod
    def opening(task: str = "Mend the parser.", system: str = "You are an agent.") -> list[Message]:
        return [{"role": "system", "content": system}, {"role": "user", "content": task}]

    @staticmethod
    def says(content: str | None, *calls: tuple[str, str], **more: Any) -> Message:
        """An assistant's message; ``calls``: (id, arguments) of tool calls."""
        message: Message = {"role": "assistant", "content": content, **more}
        if calls:
            message["tool_calls"] = [
                {"id": call, "type": "function", "function": {"name": "bash", "arguments": arguments}}
                for call, arguments in calls
            ]
        return message

    @staticmethod
    def result(call: str, content: str = "ok") -> Message:
        return {"role": "tool", "tool_call_id": call, "content": content}

    @staticmethod
    def read(*messages: Message) -> Answer:
        """The worker's answer, one choice for each message."""
        choices = [{"index": at, "message": message} for at, message in enumerate(messages)]
        return read_answer(json.dumps({"choices": choices}).encode(), "chat")


@dataclass
class Caller:
    book: TrajectoryBook = field(default_factory=TrajectoryBook)
    now: float = 0.0

    def facts(
        self,
        body: dict[str, Any],
        *,
        dialect: str = "chat",
        headers: dict[str, str] | None = None,
        path: str | None = None,
        query: dict[str, str] | None = None,
    ) -> RequestFacts:
        scan = scan_body(json.dumps({"model": "m", **body}).encode(), dialect)  # type: ignore[arg-type]
        headers = headers or {}
        return RequestFacts(path or PATHS[dialect], headers, query or {}, scan, tenant_of(headers), self.now)

    def ask(self, messages: list[Message], *, model: str = "m", **how: Any) -> Identity:
        """A chat request that has started."""
        return self.ask_body({"messages": messages, "model": model}, **how)

    def ask_body(self, body: dict[str, Any], **how: Any) -> Identity:
        self.now += 1.0
        who = self.book.resolve(self.facts(body, **how))
        self.book.step_started(who)
        return who

    def answer(self, who: Identity, *messages: Message, outcome: Outcome = Outcome.DONE) -> None:
        """The worker's answer to a chat request, with one choice for each message."""
        self.now += 1.0
        self.book.step_ended(who, outcome, Chat.read(*messages), self.now)

    def answer_body(
        self, who: Identity, body: Any, *, dialect: str = "chat", outcome: Outcome = Outcome.DONE
    ) -> None:
        self.now += 1.0
        said = read_answer(json.dumps(body).encode(), dialect)  # type: ignore[arg-type]
        self.book.step_ended(who, outcome, said, self.now)

    def break_off(self, who: Identity, outcome: Outcome = Outcome.ABORTED) -> None:
        self.now += 1.0
        self.book.step_ended(who, outcome, None, self.now)

    def turn(self, messages: list[Message], answer: Message, **how: Any) -> Identity:
        """A request and its answer."""
        who = self.ask(messages, **how)
        self.answer(who, answer)
        return who


@pytest.fixture
def caller() -> Caller:
    return Caller()


@pytest.fixture
def chat() -> type[Chat]:
    return Chat
