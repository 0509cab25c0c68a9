"""A conversation whose history is kept as the bytes that are sent: a step costs one copy of it, whatever its
length.
"""

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from heddle_cli.replay.conversation import TOOLS, AgentGaveUp, Message, Said
from heddle_cli.replay.lean_connection import (
    ENGINE_SECONDS,
    RETRY_AFTER,
    ConnectionLost,
    LeanConnection,
    host_and_port,
)

TRIES: Final = 3
"""As the SDK's two retries."""
RETRY_STATUSES: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
PAUSE_S: Final = 0.5
"""Before another try, where the server does not say."""
LONGEST_PAUSE_S: Final = 60.0


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class LeanAgents:
    """Conversations with one server, each on a connection of its own. ``base_url`` ends in /v1."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._host, self._port = host_and_port(base_url)
        path = urlsplit(base_url).path.rstrip("/") + "/chat/completions"
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\nauthorization: Bearer {api_key}\r\n"
            "content-type: application/json\r\naccept: application/json\r\n"
        ).encode()
        self._conversations: list[LeanConversation] = []

    async def __aenter__(self) -> "LeanAgents":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for conversation in self._conversations:
            conversation.close()

    def open(self, model: str, name: str | None) -> "LeanConversation":
        """A new conversation; ``name`` is sent as X-Heddle-Trajectory-Id."""
        named = b"" if name is None else f"x-heddle-trajectory-id: {name}\r\n".encode()
        made = LeanConversation(self._host, self._port, self._head + named, model)
        self._conversations.append(made)
        return made


class LeanConversation:
    """See ``Conversation``."""

    def __init__(self, host: str, port: int, head: bytes, model: str) -> None:
        self._address = host, port
        self._head = head
        self._opening = b'{"model":' + _compact(model) + b',"tools":' + _compact(TOOLS) + b',"messages":['
        self._messages: list[bytes] = []
        self._connection: LeanConnection | None = None

    def append(self, message: Message) -> None:
        if self._messages:
            self._messages.append(b",")
        self._messages.append(_compact(message))
        # One piece: a write of hundreds of pieces costs more than the copy.
        self._messages = [b"".join(self._messages)]

    async def answer(self, tokens: int) -> Said:
        ending = b'],"max_tokens":%d}' % tokens
        length = len(self._opening) + sum(map(len, self._messages)) + len(ending)
        head = self._head + b"content-length: %d\r\n\r\n" % length
        parts = [self._opening, *self._messages, ending]
        for left in reversed(range(TRIES)):
            try:
                connection = await self._ask(head, parts)
            except (OSError, ConnectionLost) as error:
                if not left:
                    raise AgentGaveUp(f"{type(error).__name__}: {error}") from error
                await asyncio.sleep(PAUSE_S)
                continue
            if connection.status == 200:
                return _said(connection.body, connection.headers)
            if connection.status not in RETRY_STATUSES or not left:
                text = connection.body[:200].decode(errors="replace")
                raise AgentGaveUp(f"status {connection.status}: {text}")
            await asyncio.sleep(_pause(connection.headers))
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _ask(self, head: bytes, parts: list[bytes]) -> LeanConnection:
        """Raises OSError, ConnectionLost. A kept connection may be closed by the server at any time while it
        is idle: that is no fault of the step, which goes on a new one.
        """
        kept = self._connection
        if kept is not None and kept.is_open:
            try:
                await kept.exchange(head, parts)
                return kept
            except ConnectionLost as lost:
                if not lost.unread:
                    raise
        self._connection = await LeanConnection.open(*self._address)
        await self._connection.exchange(head, parts)
        return self._connection


def _pause(headers: Mapping[bytes, bytes]) -> float:
    try:
        return min(LONGEST_PAUSE_S, max(0.0, float(headers[RETRY_AFTER])))
    except (KeyError, ValueError):
        return PAUSE_S


def _said(body: bytes, headers: Mapping[bytes, bytes]) -> Said:
    """Raises AgentGaveUp where the body is no chat completion."""
    try:
        answer: dict[str, Any] = json.loads(body)
        choice = answer["choices"][0]
        usage = answer["usage"]
        told = choice["message"]
        message = {key: told[key] for key in ("role", "content", "tool_calls") if told.get(key) is not None}
        engine = headers.get(ENGINE_SECONDS)
        return Said(
            message=message,
            call_ids=[call["id"] for call in message.get("tool_calls", ())],
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            output_tokens=usage["completion_tokens"],
            engine_s=None if engine is None else float(engine),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise AgentGaveUp(f"no chat completion: {error!r}") from error
