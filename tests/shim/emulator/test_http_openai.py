"""The unmodified openai SDK against emulated workers on real sockets."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from heddle_shim.emulator.answer import LengthRule
from heddle_shim.emulator.fleet_server import FleetServer
from openai import AsyncOpenAI

Serve = Callable[..., Awaitable[FleetServer]]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]
ASK: Any = [{"role": "user", "content": "what is in the box"}]


def client_of(server: FleetServer, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.urls[0] + "/v1", api_key="none", **options)


async def test_a_chat_completion_has_the_asked_length_and_says_what_it_used(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        answer = await client.chat.completions.create(model="m", messages=ASK, max_tokens=30)
    assert answer.choices[0].finish_reason == "stop"
    assert len((answer.choices[0].message.content or "").split(" ")) == 29
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 30


async def test_an_agent_finds_its_history_and_its_own_answers_in_the_cache(serve: Serve) -> None:
    messages: list[Any] = [{"role": "system", "content": "word " * 500}, {"role": "user", "content": "go"}]
    async with client_of(await serve()) as client:
        expected = 0
        for _ in range(5):
            answer = await client.chat.completions.create(
                model="m", messages=messages, tools=TOOLS, max_tokens=60
            )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == expected
            # All but the last sampled token, whose KV was never computed.
            expected = usage.prompt_tokens + usage.completion_tokens - 1
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == "tool_calls"
            messages.append(message.model_dump(exclude_none=True))
            call = message.tool_calls[0] if message.tool_calls else None
            assert call is not None
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "done " * 20})


@pytest.mark.parametrize("length", [10, 80])
async def test_a_stream_says_what_the_whole_answer_says(serve: Serve, length: int) -> None:
    ask: Any = {
        "model": "m",
        "messages": ASK,
        "tools": TOOLS,
        "max_tokens": length,
        "temperature": 0,
    }
    async with client_of(await serve()) as client:
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
        content, arguments, names, finish, usage = "", "", [], None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    if call.function is not None:
                        names += [call.function.name] if call.function.name else []
                        arguments += call.function.arguments or ""
    message = whole.choices[0].message
    assert content == (message.content or "")
    assert finish == whole.choices[0].finish_reason
    assert usage is not None
    assert usage.completion_tokens == length
    calls = message.tool_calls or []
    assert names == ([call.function.name for call in calls if call.type == "function"])
    assert arguments == "".join(call.function.arguments for call in calls if call.type == "function")


async def test_a_stream_without_include_usage_has_no_usage_chunk(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        stream = await client.chat.completions.create(model="m", messages=ASK, max_tokens=5, stream=True)
        chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


async def test_siblings_differ_unless_greedy_or_seeded(serve: Serve) -> None:
    async with client_of(await serve()) as client:

        async def say(**options: Any) -> str | None:
            answer = await client.chat.completions.create(model="m", messages=ASK, max_tokens=20, **options)
            return answer.choices[0].message.content

        assert await say() != await say()
        assert await say(temperature=0) == await say(temperature=0)
        assert await say(seed=1) == await say(seed=1)
        assert await say(seed=1) != await say(seed=2)


async def test_several_choices_share_one_prefill_and_are_counted_together(serve: Serve) -> None:
    server = await serve()
    async with client_of(server) as client:
        answer = await client.chat.completions.create(model="m", messages=ASK, n=4, max_tokens=20)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) == 4
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 80
    totals = server.workers[0].engine.totals
    assert totals.prefill_tokens == answer.usage.prompt_tokens + 4


async def test_several_choices_stream_under_their_own_index(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        stream = await client.chat.completions.create(model="m", messages=ASK, n=3, max_tokens=8, stream=True)
        said: dict[int, str] = {}
        finished: list[int] = []
        async for chunk in stream:
            for choice in chunk.choices:
                said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
                finished += [choice.index] if choice.finish_reason else []
    assert sorted(finished) == [0, 1, 2]
    assert all(len(text.split(" ")) == 7 for text in said.values())


async def test_logprobs_come_for_every_token_with_their_alternatives(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        answer = await client.chat.completions.create(
            model="m", messages=ASK, max_tokens=6, logprobs=True, top_logprobs=3
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == 6
        assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content
        for one in logprobs.content:
            assert [len(one.top_logprobs), one.top_logprobs[0].token] == [3, one.token]
            assert one.logprob <= 0
        stream = await client.chat.completions.create(
            model="m", messages=ASK, max_tokens=6, logprobs=True, stream=True
        )
        seen = [
            chunk.choices[0].logprobs
            async for chunk in stream
            if chunk.choices and chunk.choices[0].delta.content
        ]
        assert len(seen) == 5
        assert all(one is not None and one.content for one in seen)


async def test_a_response_format_is_kept(serve: Serve) -> None:
    schema: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "verdict",
            "schema": {
                "type": "object",
                "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
                "required": ["ok", "why"],
            },
        },
    }
    async with client_of(await serve()) as client:
        answer = await client.chat.completions.create(
            model="m", messages=ASK, max_tokens=40, response_format=schema
        )
        verdict = json.loads(answer.choices[0].message.content or "")
        assert verdict["ok"] is True
        assert len(verdict["why"].split(" ")) > 5
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 40


async def test_tool_choice_is_obeyed(serve: Serve) -> None:
    named: Any = {"type": "function", "function": {"name": "bash"}}
    async with client_of(await serve(length_rule=LengthRule.NATURAL)) as client:
        for choice, expected in (("required", "tool_calls"), (named, "tool_calls"), ("none", "stop")):
            answer = await client.chat.completions.create(
                model="m", messages=ASK, tools=TOOLS, tool_choice=choice
            )
            assert answer.choices[0].finish_reason == expected


async def test_completions_take_text_and_ids_and_lists_of_both(serve: Serve) -> None:
    async with client_of(await serve()) as client:
        one = await client.completions.create(model="m", prompt="a b c")
        assert one.usage is not None
        assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (3, 16)
        ids = await client.completions.create(model="m", prompt=[100, 101, 102, 103], max_tokens=5)
        assert ids.usage is not None
        assert ids.usage.prompt_tokens == 4
        many = await client.completions.create(model="m", prompt=["a", "b c"], n=2, max_tokens=5)
        assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
        assert many.usage is not None
        assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (3, 20)
        echoed = await client.completions.create(model="m", prompt="a b", echo=True, max_tokens=3, logprobs=2)
        assert echoed.choices[0].text.startswith("a b ")
        assert echoed.choices[0].logprobs is not None
        assert echoed.choices[0].logprobs.text_offset is not None
        assert echoed.choices[0].logprobs.text_offset[0] == 3
        stream = await client.completions.create(model="m", prompt="a b", max_tokens=5, stream=True)
        assert len("".join([chunk.choices[0].text async for chunk in stream]).split()) == 4


async def test_a_prompt_beyond_the_context_gets_the_text_clients_know(serve: Serve) -> None:
    async with client_of(await serve(context_length=1000)) as client:
        with pytest.raises(openai.BadRequestError, match="is longer than the model's context length"):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "word " * 2000}]
            )
        with pytest.raises(openai.BadRequestError, match="Requested token count exceeds the model's maximum"):
            await client.chat.completions.create(model="m", messages=ASK, max_tokens=5000)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": ASK, "n": 0},
        {"messages": ASK, "max_tokens": "many"},
        {"messages": ASK, "max_tokens": -1},
        {"messages": ASK, "temperature": -1},
        {"messages": ASK, "stream": 1},
        {"messages": ASK, "stop": [1]},
        {"messages": ASK, "tools": {}},
        {"messages": ASK, "tool_choice": "required"},
        {"messages": ASK, "tools": TOOLS, "tool_choice": {"function": {"name": "x"}}},
        {"messages": ASK, "response_format": {"type": "xml"}},
        {"messages": ASK, "priority": "high"},
        {"messages": ASK, "priority": 2**63},
    ],
)
async def test_a_bad_field_is_a_flat_400_that_names_it(serve: Serve, body: dict[str, Any]) -> None:
    server = await serve()
    async with httpx.AsyncClient(base_url=server.urls[0]) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()
    assert error["object"] == "error"
    assert error["code"] == 400
    assert any(field in error["message"] for field in body)


async def test_a_request_whose_client_gives_up_is_aborted(serve: Serve, eventually: Eventually) -> None:
    server = await serve()
    async with client_of(server, max_retries=0, timeout=0.3) as client:
        with pytest.raises(openai.APITimeoutError):
            # A million simulated tokens do not fit into the timeout.
            await client.chat.completions.create(model="m", messages=ASK, max_tokens=200_000)
    await eventually(lambda: server.workers[0].driver.in_flight() == 0)
    assert server.workers[0].engine.totals.aborted == 1
