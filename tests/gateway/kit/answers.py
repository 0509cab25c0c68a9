"""Answers as engines write them, in each dialect."""

from typing import Any

MODEL = "test-model"


def chat_answer(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 3,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
        **more,
    }


def message_answer(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    """Anthropic's message, as SGLang writes it."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 6, "output_tokens": 3, "cache_read_input_tokens": 5},
        **more,
    }


def response_answer(response_id: str, text: str = "Hello.", **more: Any) -> dict[str, Any]:
    """OpenAI's response, as SGLang writes it."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 14,
        },
        **more,
    }


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


USAGE_CHUNK: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": MODEL,
    "choices": [],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
}
