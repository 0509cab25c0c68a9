"""The openai SDK, unmodified, against a gateway process and a worker process: the answers agents use.

What the SDK saw is compared with what the gateway wrote down of it.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

MODEL = "loom-8b"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "run_command",
            "description": "Run a command in the shell.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]


def ask(text: str) -> Any:
    return [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": text}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(shared_parts: Any) -> Any:
    engine = await shared_parts.engine("--speed", "100", "--model", MODEL)
    return await shared_parts.gateway([engine.url])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared_parts: Any, gateway: Any) -> openai.AsyncOpenAI:
    made: openai.AsyncOpenAI = shared_parts.client(gateway, max_retries=0)
    return made


@pytest_asyncio.fixture(loop_scope="module")
async def steps_of(gateway: Any) -> AsyncIterator[Any]:
    """``await steps_of(trajectory_id)``: its step records, when all is written. Then nothing may be amiss."""

    async def read(trajectory_id: str) -> Any:
        await gateway.at_rest()
        return await gateway.steps(trajectory_id)

    yield read
    await gateway.at_rest()
    await gateway.is_sound()


async def test_an_answer_and_its_continuation_are_two_steps_of_one_trajectory(
    client: openai.AsyncOpenAI, steps_of: Any
) -> None:
    messages = ask("Mend the parser.")
    first = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=20
    )
    said = first.parse()
    messages += [said.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
    second = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=10
    )
    trajectory_id = first.headers["x-heddle-trajectory-id"]
    assert second.headers["x-heddle-trajectory-id"] == trajectory_id
    assert [one.headers["x-heddle-step"] for one in (first, second)] == ["0", "1"]
    assert [one.headers["x-heddle-trajectory-source"] for one in (first, second)] == [
        "history-new",
        "history",
    ]
    usages = [said.usage, second.parse().usage]
    for seen, written in zip(usages, await steps_of(trajectory_id), strict=True):
        assert seen is not None
        assert seen.prompt_tokens_details is not None
        assert (written["prompt_tokens"], written["cached_tokens"], written["output_tokens"]) == (
            seen.prompt_tokens,
            seen.prompt_tokens_details.cached_tokens,
            seen.completion_tokens,
        )
    assert usages[1] is not None
    assert usages[1].prompt_tokens_details is not None
    # The worker has the first turn in its cache: the history came back as it went out.
    assert usages[1].prompt_tokens_details.cached_tokens > 20


@pytest.mark.parametrize("asks_usage", [False, True])
async def test_a_stream_ends_as_the_same_answer_and_its_usage_is_written_down(
    client: openai.AsyncOpenAI, steps_of: Any, asks_usage: bool
) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if asks_usage else {}
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=ask(f"Stream, usage {asks_usage}."),
        max_tokens=30,
        temperature=0,
        stream=True,
        **options,
    )
    text, usages, finish = "", [], None
    async for chunk in raw.parse():
        if chunk.usage is not None:
            usages.append(chunk.usage.completion_tokens)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    whole = await client.chat.completions.create(
        model=MODEL, messages=ask(f"Stream, usage {asks_usage}."), max_tokens=30, temperature=0
    )
    assert (text, finish) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
    assert usages == ([30] if asks_usage else [])
    [step] = await steps_of(raw.headers["x-heddle-trajectory-id"])
    assert (step["output_tokens"], step["usage_known"], step["outcome"]) == (30, True, "done")
    assert step["first_byte_at"] is not None


@pytest.mark.parametrize("streams", [False, True])
async def test_tool_calls_are_understood_and_their_results_go_on_with_the_trajectory(
    client: openai.AsyncOpenAI, steps_of: Any, streams: bool
) -> None:
    messages = ask(f"Use the tool, stream {streams}.")
    wanted: Any = {"model": MODEL, "tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
    if streams:
        async with client.chat.completions.stream(messages=messages, **wanted) as stream:
            message = (await stream.get_final_completion()).choices[0].message
    else:
        message = (await client.chat.completions.create(messages=messages, **wanted)).choices[0].message
    assert message.tool_calls
    for call in message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "run_command"
        assert "command" in json.loads(call.function.arguments)
    messages.append(
        {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in message.tool_calls
                if call.type == "function"
            ],
        }
    )
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=10
    )
    assert raw.headers["x-heddle-step"] == "1"
    steps = await steps_of(raw.headers["x-heddle-trajectory-id"])
    assert [(step["finish_reason"], set(step["tool_names"])) for step in steps] == [
        ("tool_calls", {"run_command"}),
        ("stop", set()),
    ]


async def test_several_choices_are_one_step_with_all_their_tokens(
    client: openai.AsyncOpenAI, steps_of: Any
) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ask("Three of them."), n=3, temperature=1, max_tokens=12
    )
    answer = raw.parse()
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    [step] = await steps_of(raw.headers["x-heddle-trajectory-id"])
    assert answer.usage is not None
    assert step["output_tokens"] == answer.usage.completion_tokens == 36


async def test_log_probabilities_come_through_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    wanted: Any = {"model": MODEL, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    answer = await client.chat.completions.create(messages=ask("Log."), **wanted)
    whole = answer.choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert [len(token.top_logprobs) for token in whole.content] == [2] * len(whole.content)
    streamed = []
    async for chunk in await client.chat.completions.create(messages=ask("Log."), stream=True, **wanted):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed += choice.logprobs.content or []
    # The end-of-text token has no text, so no chunk of a stream carries it.
    assert [(token.token, token.logprob) for token in streamed] == [
        (token.token, token.logprob) for token in whole.content if token.token
    ]
    assert len(streamed) == 7


async def test_an_answer_keeps_to_a_json_schema(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "shafts": {"type": "integer"}},
        "required": ["name", "shafts"],
        "additionalProperties": False,
    }
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=ask("Describe a loom."),
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "loom", "schema": schema}},
    )
    loom = json.loads(answer.choices[0].message.content or "")
    assert set(loom) == {"name", "shafts"}
    assert isinstance(loom["shafts"], int)


async def test_text_completions_and_models_are_there_too(client: openai.AsyncOpenAI, steps_of: Any) -> None:
    raw = await client.completions.with_raw_response.create(model=MODEL, prompt="Once", max_tokens=9)
    assert raw.parse().choices[0].text
    [step] = await steps_of(raw.headers["x-heddle-trajectory-id"])
    assert (step["dialect"], step["output_tokens"]) == ("completions", 9)
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_fault_of_the_request_is_the_workers_word_as_the_sdk_knows_it(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[], max_tokens=4)
    assert caught.value.message
    assert caught.value.type
