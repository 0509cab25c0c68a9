"""A body of /v1/messages as the chat body that SGLang makes of it (anthropic/serving.py,
``_convert_to_chat_completion_request``).
"""

import json
from collections.abc import Mapping
from typing import Any

from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.request_fields import Body, flag, integer, mapping, text, texts

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(body: Body, *, counting: bool = False) -> dict[str, Any]:
    """``counting``: of a body of count_tokens, which has no ``max_tokens``."""
    if not text(body, "model"):
        raise ApiError("model: Field required")
    if not counting and body.get("max_tokens") is None:
        raise ApiError("max_tokens: Field required")
    chat: dict[str, Any] = {
        "model": body["model"],
        "messages": _messages(body),
        "max_tokens": 1 if counting else integer(body, "max_tokens", 1, low=1),
        "stream": flag(body, "stream", False),
        "stop": list(texts(body, "stop_sequences")),
    }
    chat |= {name: body[name] for name in ("temperature", "rid", "priority") if name in body}
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise ApiError("tools: must be a list")
    custom = [_tool(tool, index) for index, tool in enumerate(tools)]
    if custom:
        chat["tools"] = custom
    choice = mapping(body, "tool_choice")
    if choice:
        chat["parallel_tool_calls"] = not flag(choice, "disable_parallel_tool_use", False)
        kind = text(choice, "type")
        if kind == "tool":
            chat["tool_choice"] = {"type": "function", "function": {"name": text(choice, "name")}}
        else:
            chat["tool_choice"] = _CHOICES.get(kind or "", "auto")
    return chat


def _tool(tool: object, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise ApiError(f"tools.{index}.custom.input_schema: Field required")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": tool["input_schema"],
    }
    return {"type": "function", "function": function}


def _messages(body: Body) -> list[dict[str, Any]]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise ApiError("messages: Field required")
    found: list[dict[str, Any]] = []
    if system := _text_of(body.get("system"), "\n"):
        found.append({"role": "system", "content": system})
    for index, message in enumerate(given):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise ApiError(f"messages.{index}.role: Input should be 'user', 'assistant' or 'system'")
        if isinstance(message.get("content"), str):
            found.append({"role": message["role"], "content": message["content"]})
        elif isinstance(message.get("content"), list):
            found += _of_blocks(message["role"], message["content"], index)
        else:
            raise ApiError(f"messages.{index}.content: Field required")
    return found


def _of_blocks(role: str, blocks: list[Any], index: int) -> list[dict[str, Any]]:
    """Tool results become messages of their own, in their place."""
    found: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {})
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            if parts:
                found.append({"role": role, "content": parts})
                parts = []
            answer = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
            found.append(answer | {"content": _text_of(block.get("content"), "\n")})
        elif kind not in ("thinking", "redacted_thinking"):
            raise ApiError(f"messages.{index}.content.{at}: only text can be read by this model")
    if parts or calls or role == "assistant":
        message: dict[str, Any] = {"role": role, "content": parts or None}
        found.append(message | ({"tool_calls": calls} if calls else {}))
    return found


def _text_of(content: object, joint: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return joint.join(text for text in texts if isinstance(text, str) and text)
