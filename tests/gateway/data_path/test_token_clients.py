"""Trainers that keep the tokens themselves: what SkyRL's RemoteInferenceClient and PrimeIntellect's renderers
send to a vLLM server, and what they read of the answer.
"""

import json
from typing import Any

import pytest
from heddle_gateway.dialects.errors import NO_SUCH_ROUTE

PROMPT = list(range(100, 140))


@pytest.fixture
async def gateway(new_gateway: Any, worker: Any) -> Any:
    worker.kind = "openai"
    return await new_gateway(worker)


async def generate(gateway: Any, token_ids: list[int], path: str = "", **headers: str) -> Any:
    body = {
        "sampling_params": {"max_tokens": 64, "logprobs": 0},
        "model": "test-model",
        "token_ids": token_ids,
    }
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.client.post(f"{path}/inference/v1/generate", json=body, headers=named)


async def test_skyrls_session_is_the_trajectory_and_its_tokens_are_counted(gateway: Any, worker: Any) -> None:
    answer = await generate(gateway, PROMPT, X_Session_ID="41")
    [choice] = answer.json()["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([7, 8], "stop")
    again = await generate(gateway, [*PROMPT, 7, 8, 9], X_Session_ID="41")
    assert [one.headers["x-heddle-step"] for one in (answer, again)] == ["0", "1"]
    first, second = await gateway.records(2)
    assert (first.trajectory_id, first.source, first.dialect) == ("41", "session-id", "tokens")
    assert (first.prompt_tokens, first.output_tokens, first.finish_reason) == (40, 2, "stop")
    assert (second.step, second.prompt_tokens) == (1, 43)
    closed = await gateway.client.post("/finish_session", params={"session_id": "41"})
    assert closed.json() == {"session_id": "41", "finished": True}


async def test_a_vllm_that_orders_nothing_gets_the_body_as_it_came(gateway: Any, worker: Any) -> None:
    body = (
        b'{"model": "test-model",  "token_ids":[1,2,3] ,"sampling_params":{"max_tokens":1},"features":null}'
    )
    answer = await gateway.client.post("/inference/v1/generate", content=body)
    assert answer.status_code == 200
    assert (worker.received[0].path, worker.received[0].body) == ("/inference/v1/generate", body)


async def test_untagged_a_prompt_that_holds_the_last_answer_is_the_next_step(gateway: Any) -> None:
    siblings = [await generate(gateway, PROMPT) for _ in range(2)]
    ids = [one.headers["x-heddle-trajectory-id"] for one in siblings]
    assert len(set(ids)) == 2
    on = await generate(gateway, [*PROMPT, 7, 8, 20, 21])
    assert (on.headers["x-heddle-trajectory-id"], on.headers["x-heddle-step"]) == (ids[0], "1")


async def test_renderers_take_v1_off_the_base_url_and_the_trajectory_stays_named(gateway: Any) -> None:
    answer = await generate(gateway, PROMPT, path="/t/swe-47/3")
    assert answer.headers["x-heddle-trajectory-id"] == "swe-47/3"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/chat/completions/render"])
async def test_questions_beside_the_steps_go_to_any_worker_and_are_no_steps(
    gateway: Any, worker: Any, path: str
) -> None:
    worker.answers[path] = {"tokens": [1, 2], "prompt": "hi"}
    body = b'{"model":"test-model", "prompt":"hi", "add_special_tokens":true}'
    prefix = "" if path.startswith("/v1") else "/t/swe-47"
    for where in (path, prefix + path):
        answer = await gateway.client.post(where, content=body)
        assert (answer.status_code, answer.json()) == (200, {"tokens": [1, 2], "prompt": "hi"})
        assert answer.headers["x-heddle-worker"] == f"127.0.0.1:{worker.port}"
        assert "x-heddle-trajectory-id" not in answer.headers
    assert [request.body for request in worker.asked] == [body, body]
    assert gateway.parts.driver.stats()["steps_arrived_total"] == 0


async def test_a_question_that_no_worker_knows_is_answered_in_openais_words(gateway: Any) -> None:
    answer = await gateway.client.post("/tokenize", json={"prompt": "hi"})
    assert answer.status_code == 404
    assert json.loads(answer.content)["error"]["message"] == f"Not Found{NO_SUCH_ROUTE}"
