"""Chat completions: the JSON answer and the event stream, shaped as SGLang's serving_chat shapes them."""

import json
import time
import uuid
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from heddle_shim.emulator.answer import Answer
from heddle_shim.emulator.chat import ChatError, render_chat
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Ending
from heddle_shim.emulator.logprobs import chat_logprobs, token_logprobs
from heddle_shim.emulator.reply import DONE, ended, event, finish_word, matched_stop, usage_of
from heddle_shim.emulator.request_fields import Body, text
from heddle_shim.emulator.sampling import Choice, PromptWork, Sampling, plan_prompt, read_chat
from heddle_shim.emulator.tokens import Special, unpack
from heddle_shim.emulator.worker import EmulatedWorker


class _Part(Enum):
    """What the next token of an answer belongs to."""

    CONTENT = auto()
    CALL_NAME = auto()
    CALL_ARGUMENTS = auto()


def call_id() -> str:
    """An id as SGLang's tool parsers mint one."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ChoiceStream:
    """Turns the tokens of one choice into deltas."""

    def __init__(self, choice: Choice, index: int) -> None:
        self.choice = choice
        self.index = index
        self.sent = 0
        self.opened = False
        self.closed = False
        self._part = _Part.CONTENT
        self._calls = 0
        self._ids: list[int] = unpack(choice.answer.tokens)

    def next_delta(self) -> dict[str, Any] | None:
        """The delta of the next token; None if it says nothing by itself."""
        token = self._ids[self.sent]
        piece = self.choice.answer.pieces()[self.sent]
        self.sent += 1
        if token == Special.CALL:
            self._part = _Part.CALL_NAME
            return None
        if token == Special.CALL_ARGUMENTS:
            self._part = _Part.CALL_ARGUMENTS
            self._calls += 1
            name = self.choice.answer.calls[self._calls - 1].name
            return _delta(call={"id": call_id(), "name": name, "arguments": ""}, call_index=self._calls - 1)
        if token == Special.CALL_END:
            self._part = _Part.CONTENT
            return None
        if not piece or self._part is _Part.CALL_NAME:
            return None
        if self._part is _Part.CALL_ARGUMENTS:
            return _delta(call={"id": None, "name": None, "arguments": piece}, call_index=self._calls - 1)
        return _delta(content=piece)


def _delta(
    content: str | None = None,
    call: dict[str, Any] | None = None,
    call_index: int = 0,
    role: str | None = None,
) -> dict[str, Any]:
    calls = None
    if call is not None:
        function = {"name": call["name"], "arguments": call["arguments"]}
        calls = [{"id": call["id"], "index": call_index, "type": "function", "function": function}]
    return {"role": role, "content": content, "reasoning_content": None, "tool_calls": calls}


class ChatReply:
    """One chat completion request."""

    opening: bytes | None = None

    def __init__(self, worker: EmulatedWorker, body: Body) -> None:
        sampling = read_chat(body)
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        try:
            prompt = render_chat(worker.memo, body.get("messages"), tools)
        except ChatError as error:
            raise ApiError(str(error)) from error
        self._worker = worker
        self._sampling: Sampling = sampling
        self._work: PromptWork = plan_prompt(worker, sampling, prompt, sampling.rid, leading_space=False)
        for choice in self._work.choices:
            for said, tokens in choice.answer.encoded:
                worker.memo.learn(said, tokens)
        self._created = int(time.time())
        self._model = text(body, "model") or worker.settings.model
        self.streams = [ChoiceStream(choice, index) for index, choice in enumerate(self._work.choices)]
        head = {
            "id": sampling.rid,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }
        self._head = b"data: " + json.dumps(head, separators=(",", ":"))[:-1].encode()

    @property
    def stream(self) -> bool:
        return self._sampling.stream

    @property
    def works(self) -> list[PromptWork]:
        return [self._work]

    def whole(self) -> dict[str, Any]:
        made = [choice.generation.made for choice in self._work.choices]
        return {
            "id": self._sampling.rid,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(stream) for stream in self.streams],
            "usage": self.usage(made),
            "metadata": {"weight_version": "default"},
        }

    def refused(self, error: ApiError) -> bytes:
        return error.event()

    def frames(self, made: Sequence[int]) -> bytes:
        frames: list[bytes] = []
        for stream, tokens in zip(self.streams, made, strict=True):
            if stream.closed:
                continue
            if not stream.opened and (tokens or ended(stream.choice.generation)):
                stream.opened = True
                frames.append(self._chunk(stream, _delta("", role="assistant"), made))
            while stream.sent < tokens:
                at = stream.sent
                delta = stream.next_delta()
                if delta is not None:
                    frames.append(self._chunk(stream, delta, made, at=at))
            if ended(stream.choice.generation):
                stream.closed = True
                finish = finish_word(stream.choice)
                frames.append(self._chunk(stream, _delta(), made, finish=finish))
        if all(stream.closed for stream in self.streams):
            if self._sampling.include_usage:
                usage = json.dumps(self.usage(made), separators=(",", ":")).encode()
                frames.append(self._head + b',"choices":[],"usage":' + usage + b"}\n\n")
            frames.append(DONE)
        return b"".join(frames)

    def _chunk(
        self,
        stream: ChoiceStream,
        delta: dict[str, Any],
        made: Sequence[int],
        *,
        at: int | None = None,
        finish: str | None = None,
    ) -> bytes:
        logprobs = None
        if at is not None and self._sampling.alternatives is not None:
            found = token_logprobs(stream.choice.answer, at, at + 1, self._sampling.alternatives)
            logprobs = chat_logprobs(found)
        choice = {
            "index": stream.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            "matched_stop": matched_stop(stream.choice) if finish else None,
        }
        usage = self.usage(made) if self._sampling.continuous_usage else None
        return self._head + event({"choices": [choice], "usage": usage}).replace(b"data: {", b",", 1)

    def _choice(self, stream: ChoiceStream) -> dict[str, Any]:
        choice, answer = stream.choice, stream.choice.answer
        content, calls = said(choice)
        logprobs = None
        if self._sampling.alternatives is not None:
            found = token_logprobs(answer, 0, choice.generation.made, self._sampling.alternatives)
            logprobs = chat_logprobs(found)
        tool_calls = [
            {
                "id": call_id(),
                "index": index,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
        return {
            "index": stream.index,
            "message": {
                "role": "assistant",
                "content": content if content or not calls else None,
                "reasoning_content": None,
                "tool_calls": tool_calls or None,
            },
            "logprobs": logprobs,
            "finish_reason": finish_word(choice),
            "matched_stop": matched_stop(choice),
        }

    def usage(self, made: Sequence[int]) -> dict[str, Any]:
        """The usage object when so much is made."""
        return usage_of(self.works, made, cache_report=self._worker.settings.enable_cache_report)


def said(choice: Choice) -> tuple[str, list[Any]]:
    """Text and calls of an answer that has ended."""
    if choice.generation.ending is Ending.ABORTED:
        return _said_so_far(choice.answer, choice.generation.made)
    return choice.answer.content, choice.answer.calls


def _said_so_far(answer: Answer, made: int) -> tuple[str, list[Any]]:
    """Text of an answer that was cut off; a call that is not complete is left out, as SGLang's parsers do."""
    said: list[str] = []
    done = 0
    inside = False
    for token, piece in zip(unpack(answer.tokens)[:made], answer.pieces(), strict=False):
        if token == Special.CALL:
            inside = True
        elif token == Special.CALL_END:
            inside = False
            done += 1
        elif not inside:
            said.append(piece)
    return "".join(said), answer.calls[:done]
