"""Workers that are not SGLang, as raw servers: what they lack is found by asking and done without.

The servers are strict: a field they do not know, or an abort they have no route for, is on record.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"
VLLM_METRICS = f"""\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1795970000.5
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="5000"}} 1.0
"""
Json = dict[str, Any]


@dataclass
class RawServer:
    """Answers GETs from ``pages`` (path to JSON or text), everything else 404; records POSTs."""

    pages: dict[str, Any]
    port: int = 0
    steps: list[tuple[Json, bytes]] = field(default_factory=list)
    """Bodies of the steps, read and raw."""
    other_posts: list[str] = field(default_factory=list)
    """Paths of POSTs that are no steps."""
    gate: asyncio.Event | None = None
    """Steps are answered once this is set."""
    left: int = 0
    """Steps whose connection was closed before they were answered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def served(self) -> AsyncIterator["RawServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                method, path, body = await _read_request(reader)
                await self._answer(method, path.partition("?")[0], body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if method == "GET" and path in self.pages:
            page = self.pages[path]
            text = page if isinstance(page, str) else json.dumps(page)
            kind = "text/plain" if isinstance(page, str) else "application/json"
            return _write(writer, 200, text.encode(), kind)
        if method != "POST" or path != "/v1/chat/completions":
            if method == "POST":
                self.other_posts.append(path)
            return _write(writer, 404, b'{"detail":"Not Found"}', "application/json")
        wanted = json.loads(body)
        self.steps.append((wanted, body))
        if self.gate is not None:
            opened = asyncio.create_task(self.gate.wait())
            closed = asyncio.create_task(reader.read(1))
            await asyncio.wait({opened, closed}, return_when=asyncio.FIRST_COMPLETED)
            opened.cancel()
            if closed.done():
                self.left += 1
                raise ConnectionError
            closed.cancel()
        if wanted.get("stream"):
            return _write(writer, 200, _stream(wanted), "text/event-stream")
        return _write(writer, 200, json.dumps(_completion()).encode(), "application/json")


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, path, _ = head.split(" ", 2)
    length = 0
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
    return method, path, await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def _completion() -> Json:
    message = {"role": "assistant", "content": "Hello there."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": choices,
        "usage": USAGE,
    }


def _stream(wanted: Json) -> bytes:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    choices: list[Json] = [
        {"index": 0, "delta": {"role": "assistant", "content": "Hello "}, "finish_reason": None},
        {"index": 0, "delta": {"content": "there."}, "finish_reason": "stop"},
    ]
    events: list[Json] = [{**base, "choices": [choice]} for choice in choices]
    if (wanted.get("stream_options") or {}).get("include_usage"):
        events.append({**base, "choices": [], "usage": USAGE})
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"


def plain_server() -> RawServer:
    """Any OpenAI-compatible server: a model list, and nothing else to ask."""
    return RawServer({"/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]}})


def vllm_server(policy: str) -> RawServer:
    """vLLM in its developer mode, where its scheduling policy can be read."""
    config = {"vllm_config": {"scheduler_config": {"policy": policy, "max_num_seqs": 32}}}
    return RawServer(
        {
            "/version": {"version": "0.16.0"},
            "/health": "",
            "/metrics": VLLM_METRICS,
            "/server_info": config,
            "/v1/models": {
                "object": "list",
                "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 4096}],
            },
        }
    )


async def ask_both_ways(client: openai.AsyncOpenAI, **more: Any) -> None:
    """One whole and one streamed answer."""
    messages: Any = [{"role": "user", "content": "Hello?"}]
    whole = await client.chat.completions.create(model=MODEL, messages=messages, extra_body=more or None)
    assert whole.choices[0].message.content == "Hello there."
    text = ""
    chunks = await client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, extra_body=more or None
    )
    async for chunk in chunks:
        assert chunk.usage is None, "the client did not ask for it"
        text += chunk.choices[0].delta.content or ""
    assert text == "Hello there."


@pytest.mark.parametrize("server", [plain_server, lambda: vllm_server("fcfs")], ids=["plain", "vllm-fcfs"])
async def test_a_server_without_rid_and_priority_gets_bodies_as_they_came(
    parts: Any, server: Callable[[], RawServer]
) -> None:
    async with server().served() as worker:
        gateway = await parts.gateway([worker.url])
        # A client's own are dropped: they mean something to SGLang and a 400 to others.
        await ask_both_ways(parts.client(gateway), priority=7, rid="mine", min_p=0.1)
        (whole, raw), (streamed, _) = worker.steps
        assert set(whole) == {"model", "messages", "min_p"}
        assert b'"min_p":0.1' in raw
        assert set(streamed) == {"model", "messages", "min_p", "stream", "stream_options"}
        assert streamed["stream_options"] == {"include_usage": True}
        stats = await gateway.at_rest()
        assert stats["steps"]["ended"]["done"] == 2
        steps = [
            step for one in await gateway.trajectories() for step in await gateway.steps(one["trajectory_id"])
        ]
        assert {(step["output_tokens"], step["usage_known"]) for step in steps} == {(2, True)}
        assert "/abort_request" not in worker.other_posts
        await gateway.is_sound()


async def test_vllm_gets_priorities_with_the_sign_turned_and_no_rid(parts: Any) -> None:
    async with vllm_server("priority").served() as worker:
        gateway = await parts.gateway([worker.url])
        (seen,) = (await gateway.get("/workers"))["items"]
        assert (seen["kind"], seen["priority"], seen["slots"], seen["kv_tokens"]) == (
            "vllm",
            "lower",
            32,
            80_000,
        )
        await ask_both_ways(parts.client(gateway), priority=7)
        await gateway.at_rest()
        levels = [
            step["priority_level"]
            for one in await gateway.trajectories()
            for step in await gateway.steps(one["trajectory_id"])
            if await gateway.at_rest()
        ]
        spacing = (await gateway.get("/policy"))["priority_spacing"]
        sent = [wanted["priority"] for wanted, _ in worker.steps]
        assert sorted(sent) == sorted(-level * spacing for level in levels)
        assert min(sent) < 0
        assert all("rid" not in wanted for wanted, _ in worker.steps)
        assert all(raw.count(b'"priority"') == 1 for _, raw in worker.steps)


async def test_a_hang_up_reaches_a_server_without_an_abort_route_as_a_closed_connection(
    parts: Any, until: Any
) -> None:
    worker = plain_server()
    worker.gate = asyncio.Event()
    async with worker.served():
        gateway = await parts.gateway([worker.url])
        asking = asyncio.create_task(ask_both_ways(parts.client(gateway, max_retries=0)))

        async def has_it() -> bool:
            return len(worker.steps) == 1

        async def was_left() -> bool:
            return worker.left == 1

        await until(has_it, "the step at the worker")
        asking.cancel()
        await until(was_left, "the closed connection")
        stats = await gateway.at_rest()
        assert stats["steps"]["ended"]["aborted"] == stats["steps"]["started"] == 1
        assert "/abort_request" not in worker.other_posts
        await gateway.is_sound()
