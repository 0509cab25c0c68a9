"""OpenAI's Responses, as SGLang writes them (openai/serving_responses.py), with its response store on."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from heddle_shim.emulator.chat_reply import ChatReply, call_id, said
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.reply import ended, finish_word, named_event
from heddle_shim.emulator.request_fields import Body, flag, text
from heddle_shim.emulator.responses_body import chat_body, history_of
from heddle_shim.emulator.sampling import PromptWork
from heddle_shim.emulator.worker import EmulatedWorker, StoredResponse

_STATUS = {"length": "incomplete", "abort": "failed"}
"""_status_from_finish_reason; anything else is "completed"."""
_ECHOED = ("instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p", "metadata")


class ResponsesReply:
    """One /v1/responses request."""

    def __init__(self, worker: EmulatedWorker, body: Body) -> None:
        if flag(body, "background", False) and not flag(body, "stream", False):
            raise ApiError("background: the emulator waits for its answers", 400, "background")
        history = history_of(worker, body)
        self._id = text(body, "request_id") or f"resp_{uuid.uuid4().hex}"
        self._chat = ChatReply(worker, {**chat_body(body, history), "rid": self._id})
        self._worker = worker
        self._body = body
        self._history = history
        self._created = int(time.time())
        self._choice = self._chat.streams[0]
        self._items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._number = 0
        self._over = False
        self.opening: bytes | None = None
        if self.stream:
            begun = self._response("in_progress", [], None)
            self.opening = self._event("response.created", response=begun)
            self.opening += self._event("response.in_progress", response=begun)

    @property
    def stream(self) -> bool:
        return self._chat.stream

    @property
    def works(self) -> Sequence[PromptWork]:
        return self._chat.works

    def refused(self, error: ApiError) -> bytes:
        failed = self._response("failed", [], None)
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=failed)

    def whole(self) -> dict[str, Any]:
        content, calls = said(self._choice.choice)
        items = [_message(content)] if content or not calls else []
        items += [_call(call_id(), call.name, call.arguments) for call in calls]
        return self._end(items, self._choice.choice.generation.made)

    def frames(self, made: Sequence[int]) -> bytes:
        if self._over:
            return b""
        stream, frames = self._choice, b""
        while stream.sent < made[0]:
            delta = stream.next_delta()
            if delta is not None:
                frames += self._delta(delta)
        if ended(stream.choice.generation):
            self._over = True
            frames += self._close()
            response = self._end(self._items, made[0])
            frames += self._event(f"response.{response['status']}", response=response)
        return frames

    def _delta(self, delta: dict[str, Any]) -> bytes:
        if delta["tool_calls"] is None:
            frames = b""
            if self._item is None or self._item["type"] != "message":
                frames = self._open(_message("") | {"status": "in_progress", "content": []})
                self._item = _message("") | {"id": self._item["id"] if self._item else ""}
                part = self._item["content"][0]
                frames += self._piece("response.content_part.added", content_index=0, part=part)
            self._item["content"][0]["text"] += delta["content"]
            name = "response.output_text.delta"
            return frames + self._piece(name, content_index=0, delta=delta["content"], logprobs=[])
        [call] = delta["tool_calls"]
        function = call["function"]
        if function["name"]:
            return self._open(_call(call["id"], function["name"], "") | {"status": "in_progress"})
        assert self._item is not None
        self._item["arguments"] += function["arguments"]
        return self._piece("response.function_call_arguments.delta", delta=function["arguments"])

    def _open(self, item: dict[str, Any]) -> bytes:
        frames = self._close()
        self._item = item
        return frames + self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _close(self) -> bytes:
        item, frames = self._item, b""
        if item is None:
            return frames
        if item["type"] == "message":
            [part] = item["content"]
            name = "response.output_text.done"
            frames = self._piece(name, content_index=0, text=part["text"], logprobs=[])
            frames += self._piece("response.content_part.done", content_index=0, part=part)
        else:
            name = "response.function_call_arguments.done"
            frames = self._piece(name, arguments=item["arguments"], name=item["name"])
        item["status"] = "completed"
        index = len(self._items)
        self._items.append(item)
        self._item = None
        return frames + self._event("response.output_item.done", output_index=index, item=item)

    def _piece(self, kind: str, /, **fields: object) -> bytes:
        item_id = self._item["id"] if self._item is not None else ""
        return self._event(kind, item_id=item_id, output_index=len(self._items), **fields)

    def _event(self, kind: str, /, **fields: object) -> bytes:
        number = self._number
        self._number += 1
        return named_event({"type": kind, "sequence_number": number, **fields})

    def _end(self, items: list[dict[str, Any]], made: int) -> dict[str, Any]:
        """The response, which is stored unless the request says otherwise."""
        usage = self._chat.usage([made])
        status = _STATUS.get(finish_word(self._choice.choice), "completed")
        response = self._response(status, items, usage)
        if status == "failed":
            message = self._choice.choice.generation.message or "Generation aborted"
            response["error"] = {"code": "server_error", "message": message}
        if flag(self._body, "store", True):
            self._worker.stored[self._id] = StoredResponse(response, [*self._history, *items])
        return response

    def _response(
        self, status: str, items: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        counted = None
        if usage is not None:
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            counted = {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": text(self._body, "model") or self._worker.settings.model,
            "output": items,
            "status": status,
            "usage": counted,
            "parallel_tool_calls": flag(self._body, "parallel_tool_calls", True),
            "tool_choice": self._body.get("tool_choice") or "auto",
            "tools": self._body.get("tools") or [],
            "error": None,
            "incomplete_details": None,
            "store": flag(self._body, "store", True),
            **{name: self._body.get(name) for name in _ECHOED},
        }


def _message(content: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": content, "annotations": [], "logprobs": None}
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "content": [part],
        "status": "completed",
        "phase": "final_answer",
    }


def _call(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"fc_{uuid.uuid4().hex[:8]}",
        "type": "function_call",
        "call_id": identifier,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
