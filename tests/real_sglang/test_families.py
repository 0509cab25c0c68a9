"""Anthropic's Messages and OpenAI's Responses on a real SGLang, by the official SDKs through a gateway."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest

from .crowd import Crowd, NewTokens, fill
from .workers import ANSWER_S, Worker, client, gateway, wait_until

ASK: Any = [{"role": "user", "content": "import os"}]
OUTLASTS = 1500
"""Tokens that an engine decodes for much longer than it takes to queue some requests behind them."""


@pytest.fixture(scope="module")
def front(worker_a: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with gateway(tmp_path_factory.mktemp("families"), "--worker", worker_a.url) as http:
        wait_until(lambda: http.get("/ready").json()["workers"]["active"] == 1, "the worker in service")
        yield http


@pytest.fixture
def model(worker_a: Worker) -> str:
    """What the engine calls its model: new weights from a disk make it the name of their folder."""
    with client(worker_a.url) as http:
        served: str = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        return served


@pytest.fixture
def claude(front: httpx.Client) -> Iterator[anthropic.Anthropic]:
    options: Any = {"base_url": str(front.base_url), "max_retries": 0, "timeout": ANSWER_S}
    with anthropic.Anthropic(api_key="none", **options) as sdk:
        yield sdk


@pytest.fixture
def codex(front: httpx.Client) -> Iterator[openai.OpenAI]:
    options: Any = {"base_url": f"{front.base_url}/v1", "max_retries": 0, "timeout": ANSWER_S}
    with openai.OpenAI(api_key="none", **options) as sdk:
        yield sdk


def steps_of(front: httpx.Client, trajectory: str, count: int) -> list[dict[str, Any]]:
    def written() -> list[dict[str, Any]] | None:
        found = front.get(f"/admin/v1/trajectories/{trajectory}").json()
        steps: list[dict[str, Any]] = found["steps"]["items"] if "steps" in found else []
        return steps if len(steps) == count else None

    steps: list[dict[str, Any]] = wait_until(written, f"{count} written steps of {trajectory}")
    return sorted(steps, key=lambda step: int(step["step"]))


def test_messages_whole_and_streamed_are_steps_of_one_trajectory(
    claude: anthropic.Anthropic, front: httpx.Client, model: str
) -> None:
    counted = claude.messages.count_tokens(model=model, messages=ASK, system="You weave.")
    raw = claude.messages.with_raw_response.create(
        model=model, messages=ASK, max_tokens=12, system="You weave."
    )
    first = raw.parse()
    trajectory = raw.headers["x-heddle-trajectory-id"]
    usage = first.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    messages = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": "On."}]
    with claude.messages.stream(model=model, messages=messages, max_tokens=12, system="You weave.") as stream:
        text = "".join(stream.text_stream)
        second = stream.get_final_message()
    assert text == "".join(block.text for block in second.content if block.type == "text")
    steps = steps_of(front, trajectory, 2)
    assert [step["source"] for step in steps] == ["history-new", "history"]
    assert [step["output_tokens"] for step in steps] == [usage.output_tokens, second.usage.output_tokens]
    assert all(step["usage_known"] and step["outcome"] == "done" for step in steps)
    assert steps[0]["prompt_tokens"] == counted.input_tokens


def test_responses_whole_streamed_and_stored_are_steps_of_one_trajectory(
    codex: openai.OpenAI, front: httpx.Client, model: str
) -> None:
    raw = codex.responses.with_raw_response.create(
        model=model, input="import os", instructions="You weave.", max_output_tokens=12
    )
    first = raw.parse()
    trajectory = raw.headers["x-heddle-trajectory-id"]
    assert codex.responses.retrieve(first.id).id == first.id
    with codex.responses.stream(
        model=model,
        input="On.",
        instructions="You weave.",
        previous_response_id=first.id,
        max_output_tokens=12,
    ) as stream:
        events = list(stream)
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == last.response.output_text
    steps = steps_of(front, trajectory, 2)
    assert [step["source"] for step in steps] == ["history-new", "history"]
    usages = [first.usage, last.response.usage]
    assert [step["output_tokens"] for step in steps] == [usage.output_tokens for usage in usages if usage]
    assert [step["prompt_tokens"] for step in steps] == [usage.input_tokens for usage in usages if usage]


def test_errors_of_the_engine_are_the_sdks_own(
    claude: anthropic.Anthropic, codex: openai.OpenAI, model: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model=model, messages=ASK, max_tokens=0)
    too_long = "word " * 50_000
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        codex.responses.create(model=model, input=too_long)
    with pytest.raises(openai.NotFoundError, match="not found"):
        codex.responses.create(model=model, input="On.", previous_response_id=gone(codex, model))


def gone(codex: openai.OpenAI, model: str) -> str:
    """The id of an answer that its worker did not keep."""
    return codex.responses.create(model=model, input="import os", max_output_tokens=2, store=False).id


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_priorities_reach_the_engine_where_the_gateway_puts_them(
    worker_a: Worker, new_tokens: NewTokens, model: str, path: str
) -> None:
    """In a header for Messages, in the body for Responses. Two slots are taken; the rest waits in order."""
    ended: list[int] = []
    lock = threading.Lock()

    def ask(priority: int) -> None:
        body: dict[str, Any] = {"model": model}
        if path == "/v1/messages":
            body |= {"messages": [{"role": "user", "content": f"{priority}"}], "max_tokens": 40}
            headers = {"x-override-rid": f"{priority:032x}", "x-override-priority": str(priority)}
        else:
            body |= {"input": f"{priority}", "max_output_tokens": 40, "priority": priority}
            body |= {"request_id": f"resp_{priority:032x}"}
            headers = {}
        with client(worker_a.url) as http:
            http.post(path, json=body, headers=headers).raise_for_status()
        with lock:
            ended.append(priority)

    with Crowd(worker_a) as crowd, ThreadPoolExecutor(8) as pool:
        fill(crowd, worker_a, new_tokens, 300, OUTLASTS)
        asked = []
        for waiting, priority in enumerate((10, 40, 20, 50, 30), start=1):
            asked.append(pool.submit(ask, priority))
            wait_until(
                lambda waiting=waiting: worker_a.loads()["num_waiting_reqs"] == waiting,  # type: ignore[misc]
                f"{waiting} waiting",
            )
        for one in asked:
            one.result()
        crowd.all()
    places = [ended.index(priority) for priority in (50, 40, 30, 20, 10)]
    # Two slots: of two neighbours in the order either may end first.
    assert all(abs(place - rank) <= 1 for rank, place in enumerate(places)), ended
