"""The openai SDK's Responses, unmodified: only ``base_url`` is set. The workers: emulated engines in a
process of their own.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

MODEL = "loom-8b"
WORKERS = 3
LENGTH = 60
"""Tokens of an answer that shall call a tool: enough for a call."""
TIMEOUT_S = 120.0
"""Of connecting too: a busy machine takes its time to accept."""
TOOLS: Any = [
    {
        "type": "function",
        "name": "run_command",
        "description": "Run a command in the shell.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    }
]
ROUND_ROBIN = {"placement": "round_robin", "order": "fcfs", "admission": "unlimited"}


class Emulated:
    """What a gateway fixture needs of a worker."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(scope="module")
def emulated() -> Iterator[list[Emulated]]:
    command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", "0", "--speed", "500"]
    command += ["--model", MODEL, "--tp", ",".join("1" * WORKERS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield [Emulated(url) for url in json.loads(process.stdout.readline())["workers"]]
        process.terminate()


@pytest.fixture
async def gateway(new_gateway: Any, emulated: list[Emulated]) -> Any:
    """Steps go to the workers in turn: what comes to the right one was sent there."""
    return await new_gateway(*emulated, policy=ROUND_ROBIN)


def client_of(gateway: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        **{"api_key": "EMPTY", "max_retries": 0, "base_url": f"{gateway.url}/v1"} | options
    )


@pytest.fixture
async def client(gateway: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(gateway) as client:
        yield client


async def test_a_response_has_text_and_usage(client: openai.AsyncOpenAI, gateway: Any) -> None:
    answer = await client.responses.create(model=MODEL, input="Say something.", instructions="You weave.")
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage is not None
    [step] = await gateway.records(1)
    assert (step.dialect, step.finish_reason, step.outcome) == ("responses", "stop", "done")
    assert step.output_tokens == answer.usage.output_tokens
    assert step.prompt_tokens == answer.usage.input_tokens


async def test_a_stream_adds_up_to_its_response(client: openai.AsyncOpenAI, gateway: Any) -> None:
    async with client.responses.stream(model=MODEL, input="Say something.") as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == answer.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    [step] = await gateway.records(1)
    assert answer.usage is not None
    assert step.output_tokens == answer.usage.output_tokens
    assert step.usage_known


async def test_streamed_calls_are_whole_and_seen(client: openai.AsyncOpenAI, gateway: Any) -> None:
    async with client.responses.stream(
        model=MODEL,
        input="List the files.",
        tools=TOOLS,
        tool_choice="required",
        max_output_tokens=LENGTH,
    ) as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    assert all("command" in json.loads(call.arguments) for call in calls)
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == "".join(call.arguments for call in calls)
    [step] = await gateway.records(1)
    assert step.tool_names == tuple(call.name for call in calls)
    assert step.finish_reason == "tool_calls"


@pytest.mark.parametrize("stored", [True, False])
async def test_an_agent_with_tools_is_one_trajectory(
    client: openai.AsyncOpenAI, gateway: Any, stored: bool
) -> None:
    """Either the worker keeps the conversation, or the agent sends all of it (Codex: store=False)."""
    workers, trajectories = set(), set()
    items: list[Any] = [{"role": "user", "content": "List the files."}]
    more: Any = {}
    for _ in range(4):
        raw = await client.responses.with_raw_response.create(
            model=MODEL,
            input=items,
            tools=TOOLS,
            tool_choice="required",
            max_output_tokens=LENGTH,
            store=stored,
            **more,
        )
        answer = raw.parse()
        workers.add(raw.headers["x-heddle-worker"])
        trajectories.add(raw.headers["x-heddle-trajectory-id"])
        calls = [item for item in answer.output if item.type == "function_call"]
        assert calls
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls
        ]
        if stored:
            items, more = results, {"previous_response_id": answer.id}
        else:
            items = [*items, *answer.output, *results]
    assert len(trajectories) == 1
    # What a worker keeps has to be asked of that worker; the rest goes round.
    assert len(workers) == (1 if stored else WORKERS)
    steps = await gateway.records(4)
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert {step.segment for step in steps} == {0}
    assert {step.source for step in steps[1:]} == {"history"}


async def test_parallel_agents_keep_to_their_own_answers(client: openai.AsyncOpenAI, gateway: Any) -> None:
    async def agent(number: int) -> str:
        previous, seen = None, set()
        for _ in range(3):
            raw = await client.responses.with_raw_response.create(
                model=MODEL, input="Go on.", previous_response_id=previous, max_output_tokens=60
            )
            previous = raw.parse().id
            seen.add(raw.headers["x-heddle-trajectory-id"])
        [trajectory] = seen
        return str(trajectory)

    found = await asyncio.gather(*(agent(number) for number in range(24)))
    assert len(set(found)) == 24
    assert gateway.at_rest()
    assert gateway.parts.driver.audit() == []


async def test_going_back_to_an_earlier_answer_is_a_new_segment(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="Begin.")
    second = await client.responses.create(model=MODEL, input="On.", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    raw = await client.responses.with_raw_response.create(
        model=MODEL, input="Otherwise.", previous_response_id=first.id
    )
    assert raw.headers["x-heddle-trajectory-source"] == "history-rewritten"
    assert raw.headers["x-heddle-step"] == "2"


async def test_a_stored_response_is_found_again_whoever_asks_for_it(
    client: openai.AsyncOpenAI, new_gateway: Any, emulated: list[Emulated], tmp_path: Any
) -> None:
    raw = await client.responses.with_raw_response.create(model=MODEL, input="Keep this.")
    kept = raw.parse()
    other = await new_gateway(*reversed(emulated), database=str(tmp_path / "other.db"))
    async with client_of(other) as elsewhere:
        for asked in (client, elsewhere):
            found = await asked.responses.with_raw_response.retrieve(kept.id)
            assert found.parse().output_text == kept.output_text
            assert found.headers["x-heddle-worker"] == raw.headers["x-heddle-worker"]
            cancelled = await asked.responses.cancel(kept.id)
            assert cancelled.status == "completed"
            with pytest.raises(openai.APIStatusError) as refused:
                await asked.responses.delete(kept.id)
            assert refused.value.status_code == 405  # as SGLang answers
        after = await elsewhere.responses.with_raw_response.create(
            model=MODEL, input="Go on.", previous_response_id=kept.id
        )
        assert after.headers["x-heddle-worker"] == raw.headers["x-heddle-worker"]


async def test_a_response_whose_worker_has_left_is_said_to_be_gone(
    client: openai.AsyncOpenAI, gateway: Any
) -> None:
    raw = await client.responses.with_raw_response.create(model=MODEL, input="Keep this.")
    name, kept = raw.headers["x-heddle-worker"], raw.parse()
    [holder] = [one for one in gateway.parts.fleet.list() if one.name == name]
    gateway.parts.fleet.drain(holder.worker_id)
    while holder.worker_id in {one.worker_id for one in gateway.parts.fleet.list()}:
        await gateway.parts.fleet.changed()
    with pytest.raises(openai.BadRequestError, match="has left") as refused:
        await client.responses.create(model=MODEL, input="On.", previous_response_id=kept.id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(kept.id)
    assert gateway.at_rest()


async def test_an_id_that_its_worker_does_not_know_is_refused_in_the_workers_words(
    client: openai.AsyncOpenAI, emulated: list[Emulated]
) -> None:
    kept = await client.responses.create(model=MODEL, input="Forget this.", store=False)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.create(model=MODEL, input="On.", previous_response_id=kept.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.retrieve(kept.id)


async def test_background_responses_are_refused_with_the_way_out(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="stream the answer") as refused:
        await client.responses.create(model=MODEL, input="Later.", background=True)
    assert refused.value.param == "background"
    events = [
        event.type
        async for event in await client.responses.create(
            model=MODEL, input="Later.", background=True, stream=True
        )
    ]
    assert events[-1] == "response.completed"


@pytest.mark.parametrize(
    ("headers", "body", "source", "trajectory"),
    [
        ({"session-id": "s", "thread-id": "t"}, {"prompt_cache_key": "s"}, "codex-thread", "t"),
        ({"session-id": "s"}, {"prompt_cache_key": "k"}, "codex", "s"),
        ({}, {"prompt_cache_key": "k"}, "body-cache-key", "k"),
        ({}, {"conversation": "c"}, "body-conversation", "c"),
    ],
)
async def test_codex_and_its_like_name_their_trajectory(
    client: openai.AsyncOpenAI, headers: dict[str, str], body: Any, source: str, trajectory: str
) -> None:
    raw = await client.responses.with_raw_response.create(
        model=MODEL, input="Hi.", store=False, extra_headers=headers, **body
    )
    assert raw.headers["x-heddle-trajectory-id"] == trajectory
    assert raw.headers["x-heddle-trajectory-source"] == source
