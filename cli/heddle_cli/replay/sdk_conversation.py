"""A conversation through the plain openai SDK, as agents are written; retries are left to it."""

from types import TracebackType
from typing import Any, Final

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletion

from heddle_cli.replay.conversation import TOOLS, AgentGaveUp, Message, Said

AGENTS_PER_CLIENT: Final = 8
"""Agents that share an SDK client. Its connection pool is searched at every request, so one pool for all gets
slow; a client for each costs a TLS context of some 20 ms."""


class SdkAgents:
    """SDK clients for ``agents`` conversations with one server. ``base_url`` ends in /v1, as the SDK wants
    it.
    """

    def __init__(self, base_url: str, api_key: str, agents: int) -> None:
        clients = -(-agents // AGENTS_PER_CLIENT)
        self._clients = [AsyncOpenAI(base_url=base_url, api_key=api_key) for _ in range(clients)]
        self._opened = 0

    async def __aenter__(self) -> "SdkAgents":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()

    def open(self, model: str, name: str | None, *, stream: bool = False) -> "SdkConversation":
        """A new conversation; ``name`` is sent as X-Heddle-Trajectory-Id."""
        client = self._clients[self._opened // AGENTS_PER_CLIENT % len(self._clients)]
        self._opened += 1
        return SdkConversation(client, model, name, stream=stream)


class SdkConversation:
    """See ``Conversation``."""

    def __init__(self, client: AsyncOpenAI, model: str, name: str | None, *, stream: bool) -> None:
        self._client = client
        self._model = model
        self._headers = None if name is None else {"X-Heddle-Trajectory-Id": name}
        self._stream = stream
        self._messages: list[Message] = []

    def append(self, message: Message) -> None:
        self._messages.append(message)

    async def answer(self, tokens: int) -> Said:
        try:
            return await (self._streamed(tokens) if self._stream else self._whole(tokens))
        except OpenAIError as error:
            raise AgentGaveUp(f"{type(error).__name__}: {error}") from error

    def _body(self) -> dict[str, Any]:
        """The bulk of a request as the SDK's ``extra_body``; the bytes sent are the same.

        Proper arguments are walked field by field against their types at every call. Of a hundred agents with
        long histories in one process that took 25 ms a step: the agents, not the servers, set the pace.
        """
        return {"messages": self._messages, "tools": TOOLS}

    async def _whole(self, tokens: int) -> Said:
        answer: ChatCompletion = await self._client.chat.completions.create(
            model=self._model,
            messages=[],
            max_tokens=tokens,
            extra_body=self._body(),
            extra_headers=self._headers,
        )
        choice = answer.choices[0]
        usage = answer.usage
        details = usage.prompt_tokens_details if usage else None
        return Said(
            message=choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
            call_ids=[call.id for call in choice.message.tool_calls or ()],
            finish_reason=choice.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )

    async def _streamed(self, tokens: int) -> Said:
        said = Said({"role": "assistant"})
        content: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=[],
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=self._body(),
            extra_headers=self._headers,
        )
        async for chunk in stream:
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                said.prompt_tokens = chunk.usage.prompt_tokens
                said.cached_tokens = (details.cached_tokens or 0) if details else 0
                said.output_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                said.finish_reason = choice.finish_reason or said.finish_reason
                content.append(choice.delta.content or "")
                for part in choice.delta.tool_calls or ():
                    call = calls.setdefault(
                        part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] = part.id or call["id"]
                    if part.function is not None:
                        call["function"]["name"] += part.function.name or ""
                        call["function"]["arguments"] += part.function.arguments or ""
        if text := "".join(content):
            said.message["content"] = text
        if calls:
            said.message["tool_calls"] = [calls[index] for index in sorted(calls)]
            said.call_ids = [call["id"] for call in said.message["tool_calls"]]
        return said
