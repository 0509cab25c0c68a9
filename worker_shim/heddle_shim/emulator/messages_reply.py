"""Anthropic's Messages, as SGLang writes them over its chat completions (anthropic/serving.py)."""

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from heddle_shim.emulator.chat import render_chat
from heddle_shim.emulator.chat_reply import ChatReply, call_id, said
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.messages_body import chat_body
from heddle_shim.emulator.reply import ended, finish_word, named_event
from heddle_shim.emulator.request_fields import Body
from heddle_shim.emulator.sampling import PromptWork
from heddle_shim.emulator.tokens import count
from heddle_shim.emulator.worker import EmulatedWorker

STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""STOP_REASON_MAP; anything else, an abort too, is "end_turn"."""


class MessagesReply:
    """One /v1/messages request."""

    opening: bytes | None = b""
    """The status 200 comes at once, and no event before the first token."""

    def __init__(self, worker: EmulatedWorker, body: Body) -> None:
        self._chat = ChatReply(worker, chat_body(body))
        self._stream = self._chat.streams[0]
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = body["model"]
        self._begun = False
        self._over = False
        self._block = -1
        self._open: str | None = None

    @property
    def stream(self) -> bool:
        return self._chat.stream

    @property
    def works(self) -> Sequence[PromptWork]:
        return self._chat.works

    def refused(self, error: ApiError) -> bytes:
        frames = self._begin([0]) + self._close()
        return frames + named_event(error.anthropic(in_stream=True)) + named_event({"type": "message_stop"})

    def whole(self) -> dict[str, Any]:
        choice = self._stream.choice
        text, calls = said(choice)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not calls else []
        content += [
            {"type": "tool_use", "id": call_id(), "name": call.name, "input": json.loads(call.arguments)}
            for call in calls
        ]
        usage = self._usage([choice.generation.made])
        return self._message(content, usage) | {"stop_reason": self._reason()}

    def frames(self, made: Sequence[int]) -> bytes:
        if self._over:
            return b""
        stream, frames = self._stream, b""
        while stream.sent < made[0]:
            delta = stream.next_delta()
            if delta is not None:
                frames += self._begin(made) + self._delta(delta)
        if ended(stream.choice.generation):
            self._over = True
            frames += self._begin(made) + self._close()
            last: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": self._reason()}}
            frames += named_event(last | {"usage": {"output_tokens": made[0]}})
            frames += named_event({"type": "message_stop"})
        return frames

    def _begin(self, made: Sequence[int]) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        usage = self._usage(made) | {"output_tokens": 0}
        return named_event({"type": "message_start", "message": self._message([], usage)})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        if delta["tool_calls"] is None:
            frames = b"" if self._open == "text" else self._start({"type": "text", "text": ""})
            return frames + self._piece({"type": "text_delta", "text": delta["content"]})
        [call] = delta["tool_calls"]
        function = call["function"]
        if function["name"]:
            return self._start({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
        return self._piece({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _start(self, block: dict[str, Any]) -> bytes:
        frames = self._close()
        self._block += 1
        self._open = block["type"]
        return frames + named_event(
            {"type": "content_block_start", "index": self._block, "content_block": block}
        )

    def _piece(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._block, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return named_event({"type": "content_block_stop", "index": self._block})

    def _reason(self) -> str:
        return STOP_REASONS.get(finish_word(self._stream.choice), "end_turn")

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "usage": usage,
        }

    def _usage(self, made: Sequence[int]) -> dict[str, int]:
        usage = self._chat.usage(made)
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        found = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage["completion_tokens"]}
        return found | ({"cache_read_input_tokens": cached} if cached else {})


def count_tokens(worker: EmulatedWorker, body: Body) -> dict[str, int]:
    """The answer of /v1/messages/count_tokens."""
    chat = chat_body(body, counting=True)
    return {"input_tokens": count(render_chat(worker.memo, chat["messages"], chat.get("tools")))}
