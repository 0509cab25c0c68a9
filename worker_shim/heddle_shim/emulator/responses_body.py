"""A body of /v1/responses as the chat body that SGLang makes of it (openai/serving_responses.py,
``_construct_input_messages``).
"""

from typing import Any

from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.request_fields import Body, flag, mapping, text
from heddle_shim.emulator.worker import EmulatedWorker


def history_of(worker: EmulatedWorker, body: Body) -> list[Any]:
    """The items of the conversation: those of the stored response it goes on from, and its own."""
    history: list[Any] = []
    previous = text(body, "previous_response_id")
    if previous is not None:
        if not previous.startswith("resp_"):
            message = f"Invalid 'response_id': '{previous}'. Expected an ID that begins with 'resp'."
            raise ApiError(message, 400, "response_id")
        stored = worker.stored.get(previous)
        if stored is None:
            raise ApiError(f"Response with id '{previous}' not found.", 404, "response_id")
        history += stored.history
    given = body.get("input")
    if isinstance(given, str):
        return [*history, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ApiError("input: Input should be a valid string or list", 400, "input")
    return [*history, *given]


def chat_body(body: Body, history: list[Any]) -> dict[str, Any]:
    """The items of an answer become one assistant message."""
    messages: list[dict[str, Any]] = []
    if instructions := text(body, "instructions"):
        messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(history):
        _add(messages, item, index)
    chat: dict[str, Any] = {
        "model": body.get("model"),
        "messages": messages,
        "max_tokens": body.get("max_output_tokens"),
        "stream": flag(body, "stream", False),
        "rid": body.get("request_id"),
        "priority": body.get("priority"),
    }
    chat |= {name: body[name] for name in ("temperature", "parallel_tool_calls") if name in body}
    tools = [tool for tool in body.get("tools") or [] if isinstance(tool, dict)]
    functions = [
        {"type": "function", "function": {name: tool.get(name) for name in ("name", "parameters")}}
        for tool in tools
        if tool.get("type") == "function"
    ]
    if functions:
        chat["tools"] = functions
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice is not None:
        chat["tool_choice"] = choice
    schema = mapping(mapping(body, "text"), "format")
    if schema.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema.get("schema")}}
    return chat


def _add(messages: list[dict[str, Any]], item: object, index: int) -> None:
    if not isinstance(item, dict):
        raise ApiError(f"input[{index}]: must be an object", 400, "input")
    kind = item.get("type", "message")
    if kind == "reasoning":
        return
    if kind == "function_call_output":
        output = item.get("output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        return
    is_call = kind == "function_call"
    role = "assistant" if is_call else item.get("role")
    if kind not in ("message", "function_call") or not isinstance(role, str):
        raise ApiError(f"input[{index}].type: {kind!r} cannot be read by this model", 400, "input")
    if role == "assistant" and messages and messages[-1]["role"] == "assistant":
        message = messages[-1]
    else:
        message = {"role": role, "content": None}
        messages.append(message)
    if is_call:
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = message.setdefault("tool_calls", [])
        calls.append({"id": item.get("call_id"), "type": "function", "function": function})
    else:
        content = item.get("content")
        message["content"] = content if message["content"] is None else message["content"] + content
