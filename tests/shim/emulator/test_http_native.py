"""SGLang's own routes over real sockets: /generate, control and facts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest
from heddle_shim.emulator.clock import VirtualClock
from heddle_shim.emulator.fleet_server import FleetServer

Serve = Callable[..., Awaitable[FleetServer]]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

LONG = {"text": "a b c", "sampling_params": {"max_new_tokens": 100_000}}


def http(server: FleetServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.urls[0], timeout=30, trust_env=False)


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_tokens_in_give_tokens_out_that_the_next_call_finds_cached(serve: Serve) -> None:
    async with http(await serve()) as client:
        ids = list(range(1000, 1200))
        expected = 0
        for _ in range(3):
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 30}}
            answer = (await client.post("/generate", json=body)).json()
            meta = answer["meta_info"]
            assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), 30)
            assert meta["cached_tokens"] == expected
            assert len(answer["output_ids"]) == 30
            expected = len(ids) + 29
            ids = [*ids, *answer["output_ids"], *range(5)]


async def test_text_and_its_ids_are_the_same_prompt(serve: Serve) -> None:
    async with http(await serve()) as client:
        tokens = (await client.post("/tokenize", json={"prompt": "some words here"})).json()["tokens"]
        assert (await client.post("/detokenize", json={"tokens": tokens})).json()["text"] == "some words here"
        params = {"max_new_tokens": 9, "temperature": 0}
        text = await client.post("/generate", json={"text": "some words here", "sampling_params": params})
        ids = await client.post("/generate", json={"input_ids": tokens, "sampling_params": params})
        assert text.json()["output_ids"] == ids.json()["output_ids"]
        back = await client.post("/detokenize", json={"tokens": text.json()["output_ids"]})
        assert back.json()["text"] == text.json()["text"]


async def test_a_stream_repeats_all_that_was_said_and_ends_with_the_reason(serve: Serve) -> None:
    async with http(await serve(speed=20.0)) as client:
        body = {"text": "a b", "stream": True, "sampling_params": {"max_new_tokens": 40}}
        seen = events((await client.post("/generate", json=body)).text)
    texts = [one["text"] for one in seen]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert [one["meta_info"]["finish_reason"] for one in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    assert seen[-1]["meta_info"]["completion_tokens"] == 40


async def test_a_batch_gives_a_list_in_its_order(serve: Serve) -> None:
    async with http(await serve()) as client:
        body = {
            "text": ["a", "b c", "d e f"],
            "rid": ["x", "y", "z"],
            "sampling_params": {"max_new_tokens": 3},
        }
        answers = (await client.post("/generate", json=body)).json()
        assert [one["meta_info"]["prompt_tokens"] for one in answers] == [1, 2, 3]
        assert [one["meta_info"]["id"] for one in answers] == ["x", "y", "z"]
        own = [{"max_new_tokens": length} for length in (2, 4, 6)]
        answers = (await client.post("/generate", json=body | {"sampling_params": own})).json()
        assert [one["meta_info"]["completion_tokens"] for one in answers] == [2, 4, 6]
        streamed = events((await client.post("/generate", json=body | {"stream": True})).text)
        assert {one["index"] for one in streamed} == {0, 1, 2}


async def test_logprobs_are_given_where_asked_for(serve: Serve) -> None:
    async with http(await serve()) as client:
        body = {"text": "a", "return_logprob": True, "top_logprobs_num": 2}
        body["sampling_params"] = {"max_new_tokens": 5}
        answer = (await client.post("/generate", json=body)).json()
    logprobs = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in logprobs] == answer["output_ids"]
    assert all(len(top) == 2 for top in answer["meta_info"]["output_top_logprobs"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"input_ids": []},
        {"input_ids": [-1]},
        {"input_ids": [True]},
        {"text": ""},
        {"text": "a", "sampling_params": {"json_schema": "{"}},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"text": ["a", "b"], "rid": ["one"]},
    ],
)
async def test_a_bad_request_is_a_400_with_a_message(serve: Serve, body: dict[str, Any]) -> None:
    async with http(await serve()) as client:
        answer = await client.post("/generate", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_bodies_that_are_no_json_objects_are_refused(serve: Serve) -> None:
    async with http(await serve()) as client:
        for content in (b"{", b"[]", b""):
            assert (await client.post("/generate", content=content)).status_code == 400
        typeless = await client.post("/v1/chat/completions", content=b"{}")
        assert typeless.status_code == 400
        assert "Only 'application/json' is allowed" in typeless.json()["message"]
        assert (await client.get("/nowhere")).json() == {"detail": "Not Found"}
        assert (await client.get("/generate")).status_code == 405


async def test_each_token_of_a_stream_is_sent_when_its_step_is_complete(
    serve: Serve, eventually: Eventually
) -> None:
    clock = VirtualClock()
    server = await serve(clock=clock)
    engine = server.workers[0].engine
    body = {"text": "a b", "stream": True, "sampling_params": {"max_new_tokens": 4}}
    async with http(server) as client:
        request = client.build_request("POST", "/generate", json=body)
        opening = asyncio.create_task(client.send(request, stream=True))
        await eventually(lambda: engine.next_event_time() is not None)
        counts: list[int] = []
        lines: Any = None
        while (due := engine.next_token_time()) is not None:
            clock.advance(due - clock.now())
            if lines is None:
                lines = (await opening).aiter_lines()
            line = await anext(lines)
            counts.append(json.loads(line.removeprefix("data: "))["meta_info"]["completion_tokens"])
            assert await anext(lines) == ""
        assert counts == [1, 2, 3, 4]
        assert await anext(lines) == "data: [DONE]"
        await (await opening).aclose()


async def test_a_request_id_in_flight_cannot_be_used_again(serve: Serve, eventually: Eventually) -> None:
    server = await serve(clock=VirtualClock())
    async with http(server) as client:
        first = asyncio.create_task(client.post("/generate", json=LONG | {"rid": "one"}))
        await eventually(lambda: server.workers[0].driver.in_flight() == 1)
        second = await client.post("/generate", json=LONG | {"rid": "one"})
        assert second.status_code == 400
        assert "Duplicate request ID" in second.json()["error"]["message"]
        await client.post("/abort_request", json={"rid": "one"})
        server.workers[0].driver.clock.advance(100.0)  # type: ignore[attr-defined]
        await first


async def test_an_abort_matches_ids_by_their_beginning(serve: Serve, eventually: Eventually) -> None:
    clock = VirtualClock()
    server = await serve(clock=clock)
    driver = server.workers[0].driver
    async with http(server) as client:
        tasks = [
            asyncio.create_task(client.post("/generate", json=LONG | {"rid": rid}))
            for rid in ("aa1", "aa2", "b")
        ]
        await eventually(lambda: driver.in_flight() == 3)
        clock.advance(10.0)
        assert (await client.post("/abort_request", json={"rid": "aa"})).status_code == 200
        clock.advance(1.0)
        aborted = [(await task).json()["meta_info"] for task in tasks[:2]]
        assert [meta["finish_reason"]["type"] for meta in aborted] == ["abort", "abort"]
        assert all(meta["completion_tokens"] > 100 for meta in aborted)
        assert driver.in_flight() == 1
        assert (await client.post("/abort_request", json={})).status_code == 400
        await client.post("/abort_request", json={"abort_all": True})
        clock.advance(1.0)
        assert (await tasks[2]).json()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before_first_token", [True, False])
async def test_a_client_that_hangs_up_frees_its_slot_at_once(
    serve: Serve, eventually: Eventually, stream: bool, before_first_token: bool
) -> None:
    clock = VirtualClock()
    server = await serve(clock=clock)
    driver, engine = server.workers[0].driver, server.workers[0].engine
    async with http(server) as client:
        request = client.build_request("POST", "/generate", json=LONG | {"stream": stream})
        task = asyncio.create_task(client.send(request, stream=True))
        await eventually(lambda: driver.in_flight() == 1)
        if not before_first_token:
            clock.advance(1.0)
        if stream and not before_first_token:
            await (await task).aclose()
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: all(generation.abort_wanted for generation in engine.live()))
    clock.advance(0.1)
    await eventually(lambda: driver.in_flight() == 0)
    assert engine.totals.aborted == 1


async def test_a_full_queue_turns_requests_away_with_503(serve: Serve, eventually: Eventually) -> None:
    clock = VirtualClock()
    server = await serve(clock=clock, engine={"max_running_requests": 1, "max_queued_requests": 1})
    driver = server.workers[0].driver
    async with http(server) as client:
        running, waiting = (
            asyncio.create_task(client.post("/generate", json=LONG | {"priority": 5, "rid": rid}))
            for rid in "ab"
        )
        await eventually(lambda: driver.in_flight() == 2)
        refused = await client.post("/generate", json=LONG | {"priority": 1, "stream": True})
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "The request queue is full."
        clock.advance(10_000.0)
        assert {(await task).status_code for task in (running, waiting)} == {200}


async def test_a_paused_worker_is_not_ready_and_keeps_requests_until_it_goes_on(
    serve: Serve, eventually: Eventually
) -> None:
    server = await serve()
    async with http(server) as client:
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/pause_generation", json={"mode": "sideways"})).status_code == 400
        assert (await client.post("/pause_generation", json={"mode": "in_place"})).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        task = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
        await eventually(lambda: server.workers[0].driver.in_flight() == 1)
        load = (await client.get("/v1/loads")).json()["loads"][0]
        assert (load["num_waiting_reqs"], load["queues"]["paused"]) == (1, 1)
        assert (await client.post("/flush_cache")).status_code == 400
        assert (await client.post("/continue_generation", json={})).status_code == 200
        assert (await task).status_code == 200
        assert (await client.post("/flush_cache")).status_code == 200


async def test_the_worker_says_what_it_is(serve: Serve) -> None:
    server = await serve((4, 1), model="some/model", engine={"max_running_requests": 9, "page_size": 16})
    async with http(server) as client:
        info = (await client.get("/server_info")).json()
        assert info == (await client.get("/get_server_info")).json()
        assert (info["tp_size"], info["max_running_requests"], info["page_size"]) == (4, 9, 16)
        assert (info["version"], info["heddle_emulated"]) == ("0.5.23", True)
        assert info["max_total_num_tokens"] > 1_000_000
        assert info["enable_priority_scheduling"] is True
        other = (await client.get(server.urls[1] + "/server_info")).json()
        assert other["tp_size"] == 1
        assert other["heddle_instance_id"] != info["heddle_instance_id"]
        assert (await client.get("/model_info")).json()["model_path"] == "some/model"
        card = (await client.get("/v1/models")).json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("some/model", info["context_length"])
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health_generate")).status_code == 200


async def test_load_and_metrics_add_up_to_what_was_done(serve: Serve) -> None:
    server = await serve()
    async with http(server) as client:
        for _ in range(3):
            body = {"text": "a b c d e", "sampling_params": {"max_new_tokens": 11}}
            await client.post("/generate", json=body)
        load = (await client.get("/v1/loads?include=core")).json()["loads"][0]
        steps, batch, micros, squares, products, tokens = load["decode_moments"]
        assert (steps, batch, squares, tokens) == (30, 30, 30, 30)
        assert products == micros > 0
        assert load["num_running_reqs"] == load["num_used_tokens"] == 0
        # Five prompt tokens once, then only the last one of each repetition.
        assert load["total_prefill_uncached_tokens"] == 7
        text = (await client.get("/metrics")).text
    values = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if not line.startswith("#") and "le=" not in line
    }
    assert values["sglang:generation_tokens_total"] == 33
    assert values["sglang:prompt_tokens_total"] == 15
    assert values["sglang:cached_tokens_total"] == 8
    assert values["sglang:e2e_request_latency_seconds_count"] == 3
    assert values["sglang:inter_token_latency_seconds_count"] == 30
    assert values["sglang:max_total_num_tokens"] == load["max_total_num_tokens"]
