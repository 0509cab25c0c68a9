"""The openai SDK, unmodified: only ``base_url`` is set. The worker: an emulated engine in its own process."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Say something about looms."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "loom",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "shafts": {"type": "integer"}},
            "required": ["name", "shafts"],
            "additionalProperties": False,
        },
    },
}


class Emulated:
    """What a gateway fixture needs of a worker."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulated]:
    command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", "0", "--speed", "200"]
    command += ["--length", "natural", "--model", "loom-8b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Emulated(json.loads(process.stdout.readline())["workers"][0])
        process.terminate()


@pytest.fixture
async def client(new_gateway: Any, emulated: Emulated) -> AsyncIterator[openai.AsyncOpenAI]:
    gateway = await new_gateway(emulated)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


async def test_plain_answers_have_text_usage_and_a_request_id(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="loom-8b", messages=MESSAGES, max_tokens=40)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer._request_id


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in client.models.list()]
    assert models == ["loom-8b"]
    assert (await client.models.retrieve("loom-8b")).owned_by == "heddle"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_streams_end_and_show_no_usage_that_was_not_asked_for(client: openai.AsyncOpenAI) -> None:
    text = ""
    async for chunk in await client.chat.completions.create(
        model="loom-8b", messages=MESSAGES, max_tokens=40, stream=True
    ):
        assert chunk.usage is None
        text += chunk.choices[0].delta.content or ""
    assert text


async def test_streams_show_usage_to_those_who_ask(client: openai.AsyncOpenAI) -> None:
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="loom-8b",
            messages=MESSAGES,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


async def test_tools_are_called_and_their_results_go_on_with_the_same_trajectory(
    client: openai.AsyncOpenAI,
) -> None:
    first = await client.chat.completions.with_raw_response.create(
        model="loom-8b", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    )
    message = first.parse().choices[0].message
    assert message.tool_calls
    call: Any = message.tool_calls[0]
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)
    history: Any = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = await client.chat.completions.with_raw_response.create(
        model="loom-8b", messages=history, tools=TOOLS, max_tokens=20
    )
    assert second.headers["x-heddle-trajectory-id"] == first.headers["x-heddle-trajectory-id"]
    assert second.headers["x-heddle-step"] == "1"


async def test_streamed_tool_calls_keep_their_parts(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="loom-8b", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert json.loads(calls[0].function.arguments)


async def test_several_choices_come_back(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="loom-8b", messages=MESSAGES, n=3, max_tokens=10)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_survive(client: openai.AsyncOpenAI, stream: bool) -> None:
    wanted: Any = {
        "model": "loom-8b",
        "messages": MESSAGES,
        "max_tokens": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }
    if stream:
        chunks = [chunk async for chunk in await client.chat.completions.create(**wanted, stream=True)]
        content = [
            entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content or []
        ]
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] is not None
    else:
        answer = await client.chat.completions.create(**wanted)
        content = answer.choices[0].logprobs.content
    assert content
    assert all(len(entry.top_logprobs) == 2 for entry in content)


async def test_a_json_schema_is_kept_to(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="loom-8b", messages=MESSAGES, response_format=SCHEMA)
    found = json.loads(answer.choices[0].message.content or "")
    assert found.keys() == {"name", "shafts"}


async def test_text_completions_work(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="loom-8b", prompt="Once upon a time", max_tokens=10)
    assert answer.choices[0].text
    text = ""
    async for part in await client.completions.create(
        model="loom-8b", prompt="Once", max_tokens=10, stream=True
    ):
        text += part.choices[0].text
    assert text


async def test_a_context_overflow_keeps_the_words_that_agents_look_for(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="context length") as refused:
        await client.chat.completions.create(model="loom-8b", messages=MESSAGES, max_tokens=10_000_000)
    assert refused.value.request_id
    assert isinstance(refused.value.body, dict)


async def test_no_worker_is_a_503_that_the_sdk_retries(new_gateway: Any) -> None:
    gateway = await new_gateway()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="EMPTY", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model="loom-8b", messages=MESSAGES)
    assert refused.value.status_code == 503
    assert refused.value.code == "no_worker"


async def test_the_sdks_own_retry_is_the_same_step(new_gateway: Any, worker: Any) -> None:
    async def script(request: Any, line: Any) -> None:
        if len(worker.received) == 1:
            await line.answer(500, {"object": "error", "message": "boom", "type": "x", "code": 500})
        else:
            await line.answer_chat()

    worker.script = script
    gateway = await new_gateway(worker)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="EMPTY", max_retries=1) as client:
        answer = await client.chat.completions.create(model="test-model", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello."
    records = await gateway.records(2)
    assert {record.trajectory_id for record in records} == {records[0].trajectory_id}
    assert [(record.step, record.outcome, record.retries) for record in records] == [
        (0, "worker_error", 0),
        (0, "done", 1),
    ]


async def test_an_sdk_stream_cut_by_a_lost_worker_raises_and_does_not_end_quietly(
    new_gateway: Any, worker: Any
) -> None:
    async def script(request: Any, line: Any) -> None:
        await line.begin_stream()
        await line.chat_event({"role": "assistant", "content": "Hel"})
        line.reset()

    worker.script = script
    gateway = await new_gateway(worker)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="EMPTY", max_retries=0) as client:
        stream = await client.chat.completions.create(model="test-model", messages=MESSAGES, stream=True)

        async def read() -> None:
            async for _ in stream:
                pass

        with pytest.raises(openai.APIError, match="lost"):
            await read()
