"""The anthropic SDK, unmodified: only ``base_url`` and the key are set. The worker: an emulated engine in its
own process.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import anthropic
import pytest

MODEL = "loom-8b"
ASK: Any = [{"role": "user", "content": "Say something about looms."}]
TOOLS: Any = [
    {
        "name": "run_command",
        "description": "Run a command in the shell.",
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    }
]
TIMEOUT_S = 120.0
"""Of connecting too: a busy machine takes its time to accept."""
AGENTS = 96
SAMPLES = 8
STEPS = 4


class Emulated:
    """What a gateway fixture needs of a worker."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulated]:
    command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", "0", "--speed", "500"]
    command += ["--length", "natural", "--model", MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Emulated(json.loads(process.stdout.readline())["workers"][0])
        process.terminate()


@pytest.fixture
async def gateway(new_gateway: Any, emulated: Emulated) -> Any:
    return await new_gateway(emulated)


def client_of(gateway: Any, **options: Any) -> anthropic.AsyncAnthropic:
    options = {"api_key": "EMPTY", "max_retries": 0, "base_url": gateway.url, "timeout": TIMEOUT_S} | options
    return anthropic.AsyncAnthropic(**options)


@pytest.fixture
async def client(gateway: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(gateway) as client:
        yield client


async def test_a_message_has_text_usage_and_a_stop_reason(
    client: anthropic.AsyncAnthropic, gateway: Any
) -> None:
    answer = await client.messages.create(model=MODEL, messages=ASK, max_tokens=4000, system="You weave.")
    assert answer.stop_reason == "end_turn"
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    [step] = await gateway.records(1)
    assert (step.dialect, step.finish_reason, step.outcome) == ("messages", "stop", "done")
    assert step.output_tokens == answer.usage.output_tokens
    assert step.prompt_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert step.priority_level is not None


async def test_a_stream_adds_up_to_its_message(client: anthropic.AsyncAnthropic, gateway: Any) -> None:
    async with client.messages.stream(model=MODEL, messages=ASK, max_tokens=4000) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == message.content[0].text  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    [step] = await gateway.records(1)
    assert step.output_tokens == message.usage.output_tokens
    assert step.usage_known


async def test_tools_are_called_answered_and_seen(client: anthropic.AsyncAnthropic, gateway: Any) -> None:
    messages: Any = [{"role": "user", "content": "List the files."}]
    choice: Any = {"type": "tool", "name": "run_command"}
    # A greedy answer is the same in each run: it is long enough for a call.
    async with client.messages.stream(
        model=MODEL,
        messages=messages,
        tools=TOOLS,
        tool_choice=choice,
        max_tokens=4000,
        extra_body={"temperature": 0},
    ) as stream:
        said = await stream.get_final_message()
    calls = [block for block in said.content if block.type == "tool_use"]
    assert said.stop_reason == "tool_use"
    assert all(isinstance(call.input, dict) and "command" in call.input for call in calls)
    messages.append({"role": "assistant", "content": said.content})
    results: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]
    messages.append({"role": "user", "content": results})
    raw = await client.messages.with_raw_response.create(
        model=MODEL, messages=messages, tools=TOOLS, max_tokens=4000
    )
    assert raw.headers["x-heddle-trajectory-source"] == "history"
    first, second = await gateway.records(2)
    assert first.trajectory_id == second.trajectory_id
    assert [first.step, second.step] == [0, 1]
    assert set(first.tool_names) == {"run_command"}
    assert first.finish_reason == "tool_calls"


async def test_tokens_are_counted_without_a_step(client: anthropic.AsyncAnthropic, gateway: Any) -> None:
    short = await client.messages.count_tokens(model=MODEL, messages=ASK)
    longer = await client.messages.count_tokens(model=MODEL, messages=ASK, tools=TOOLS, system="You weave.")
    assert 0 < short.input_tokens < longer.input_tokens
    answer = await client.messages.create(model=MODEL, messages=ASK, max_tokens=20)
    usage = answer.usage
    assert short.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert len(await gateway.records(1)) == 1


async def test_models_come_in_anthropics_shape(client: anthropic.AsyncAnthropic) -> None:
    models = [model async for model in client.models.list(limit=1)]
    assert [(model.id, model.type) for model in models] == [(MODEL, "model")]
    assert (await client.models.retrieve(MODEL)).created_at.year > 2000
    with pytest.raises(anthropic.NotFoundError, match="GET /v1/models"):
        await client.models.retrieve("other")


async def test_what_is_wrong_with_a_request_is_said_in_anthropics_words(gateway: Any) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(model=MODEL, messages=ASK, max_tokens=0)
        assert "max_tokens" in refused.value.message
        body: Any = refused.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    answer = await gateway.client.post("/v1/messages", content=b"{")
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert "cannot be read" in answer.json()["error"]["message"]
    answer = await gateway.client.get("/v1/messages")
    assert (answer.status_code, answer.json()["type"]) == (405, "error")
    # Of what never ran as a step nothing is counted, and nothing is left behind.
    assert [step.outcome for step in await gateway.records(1)] == ["client_error"]
    assert gateway.at_rest()


@pytest.mark.parametrize(
    ("options", "source", "trajectory"),
    [
        ({"base": "/t/mine"}, "url", "mine"),
        ({"api_key": "sk-heddle-mine"}, "key", "mine"),
        ({"auth_token": "sk-heddle-mine", "api_key": None}, "key", "mine"),
        ({"default_headers": {"X-Claude-Code-Session-Id": "s"}}, "claude-code", "s"),
        (
            {"default_headers": {"X-Claude-Code-Session-Id": "s", "X-Claude-Code-Agent-Id": "a"}},
            "claude-code",
            "s/a",
        ),
    ],
)
async def test_a_trajectory_is_named_as_in_chat(
    gateway: Any, options: dict[str, Any], source: str, trajectory: str
) -> None:
    base = options.pop("base", "")
    async with client_of(gateway, base_url=gateway.url + base, **options) as client:
        raw = await client.beta.messages.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=9)
    assert raw.headers["x-heddle-trajectory-id"] == trajectory
    assert raw.headers["x-heddle-trajectory-source"] == source


async def test_claude_codes_user_id_names_its_session(
    client: anthropic.AsyncAnthropic,
) -> None:
    user: Any = {"user_id": "user_0a_account__session_1b2c"}
    raw = await client.messages.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=9, metadata=user
    )
    assert raw.headers["x-heddle-trajectory-id"] == "1b2c"


async def test_agents_that_say_nothing_of_themselves_are_as_many_trajectories(gateway: Any) -> None:
    """96 agents, 8 samples of each of 12 tasks, some streamed; every one marks its caching anew each time."""

    async def agent(client: anthropic.AsyncAnthropic, number: int) -> set[str]:
        seen = set()
        messages: list[Any] = [{"role": "user", "content": f"Task {number // SAMPLES}."}]
        random = Random(number)
        for step in range(STEPS):
            mark = {"type": "ephemeral"} if step % 2 else None
            system: Any = [{"type": "text", "text": "You are an agent.", "cache_control": mark}]
            ask: Any = {"model": MODEL, "messages": messages, "max_tokens": 300, "tools": TOOLS}
            if random.random() < 0.5:
                raw = await client.messages.with_raw_response.create(**ask, system=system)
                content = (await raw.parse()).content
                seen.add(raw.headers["x-heddle-trajectory-id"])
            else:
                async with client.messages.stream(**ask, system=system) as stream:
                    content = (await stream.get_final_message()).content
                    seen.add(stream.response.headers["x-heddle-trajectory-id"])
            calls = [block for block in content if block.type == "tool_use"]
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": call.id, "content": f"{number} {step}"}
                for call in calls
            ]
            messages += [
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in content]},
                {"role": "user", "content": results or f"Go on, {number}."},
            ]
        return seen

    async with client_of(gateway) as client:
        found = await asyncio.gather(*(agent(client, number) for number in range(AGENTS)))
    assert all(len(seen) == 1 for seen in found)
    assert len(set().union(*found)) == AGENTS
    records = await gateway.records(AGENTS * STEPS)
    assert sorted(record.step for record in records) == sorted(list(range(STEPS)) * AGENTS)
    groups: dict[str | None, set[str]] = {}
    for record in records:
        groups.setdefault(record.group_id, set()).add(record.trajectory_id)
    assert sorted(len(members) for members in groups.values()) == [SAMPLES] * (AGENTS // SAMPLES)
    assert gateway.at_rest()
    assert gateway.parts.driver.audit() == []
