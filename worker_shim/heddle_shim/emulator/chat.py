"""Chat messages to prompt tokens, after the ChatML shape that Qwen's template has.

    [START TOOLS tools END] { START role [NAME name] content { CALL name CALL_ARGUMENTS arguments CALL_END }
    END }  START ASSISTANT

Invariant: an answer is ``content calls END``, so the rendering of history + answer + anything starts with
the rendering of the history followed by the answer's tokens. That is what makes decoded KV reusable in the
next step.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from heddle_shim.emulator.tokens import Special, TokenMemo, pack

_ROLES: Final[dict[str, bytes]] = {
    "system": pack([Special.START, Special.SYSTEM]),
    "developer": pack([Special.START, Special.SYSTEM]),
    "user": pack([Special.START, Special.USER]),
    "assistant": pack([Special.START, Special.ASSISTANT]),
    "tool": pack([Special.START, Special.TOOL]),
}
_OTHER_ROLE: Final = pack([Special.START, Special.OTHER_ROLE])
_NAME: Final = pack([Special.NAME])
_TOOLS: Final = pack([Special.START, Special.TOOLS])
END: Final = pack([Special.END])
CALL: Final = pack([Special.CALL])
CALL_ARGUMENTS: Final = pack([Special.CALL_ARGUMENTS])
CALL_END: Final = pack([Special.CALL_END])


class ChatError(ValueError):
    """A messages array that cannot be rendered; the message names the place."""


def render_chat(memo: TokenMemo, messages: object, tools: Sequence[Any] | None) -> bytes:
    """Prompt tokens of a request, up to and with the opening of the answer."""
    if not isinstance(messages, list) or not messages:
        raise ChatError("messages: must be a list of at least one message")
    parts: list[bytes] = []
    if tools:
        parts += (_TOOLS, memo.encode(json.dumps(tools, separators=(",", ":"))), END)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatError(f"messages[{index}].role: must be a string")
        _render_message(memo, message, f"messages[{index}]", parts)
    parts.append(_ROLES["assistant"])
    return b"".join(parts)


def _render_message(memo: TokenMemo, message: Mapping[str, Any], place: str, parts: list[bytes]) -> None:
    role: str = message["role"]
    opening = _ROLES.get(role)
    if opening is None:
        parts += (_OTHER_ROLE, memo.encode(role), _NAME)
    else:
        parts.append(opening)
    name = message.get("name")
    if isinstance(name, str):
        parts += (_NAME, memo.encode(name), _NAME)
    if text := _text_of(message.get("content"), place):
        parts.append(memo.encode(text))
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise ChatError(f"{place}.tool_calls: must be a list")
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ChatError(f"{place}.tool_calls[{index}].function.name: must be a string")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            # Some harnesses send the parsed object, or null for no arguments.
            arguments = "" if arguments is None else json.dumps(arguments)
        parts += (CALL, memo.encode(function["name"]), CALL_ARGUMENTS, memo.encode(arguments), CALL_END)
    parts.append(END)


def _text_of(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"{place}.content: must be a string or a list of parts")
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise ChatError(f"{place}.content[{index}]: only text parts can be read by this model")
    return "".join(texts)
