"""A trajectory's KV moved between two real SGLang servers in its tool gap: it is found, the answers stay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .workers import PAGE, Answer, Worker, assert_same_answer, wait_until

NewTokens = Callable[[int], list[int]]

# Of a page's 16 KB each (float32, 2 layers, 2 KV heads of 32, K and V) a prefix of 1,100 tokens has 68.
PROMPT, RESULT, NEW, STEPS = 400, 120, 24, 5


@dataclass
class Trajectory:
    """Steps on one worker; tool results are tokens that no other has."""

    new_tokens: NewTokens
    last: Answer | None = None

    def next_prompt(self) -> list[int]:
        if self.last is None:
            return self.new_tokens(PROMPT)
        return [*self.last.tokens, *self.new_tokens(RESULT)]

    def step(self, worker: Worker, **more: Any) -> Answer:
        self.last = worker.generate(self.next_prompt(), NEW, **more)
        return self.last

    def run(self, worker: Worker, steps: int = STEPS) -> Answer:
        for _ in range(steps):
            answer = self.step(worker)
        wait_until(
            lambda: (worker.residency(answer.tokens)["store"] or 0) * PAGE >= answer.full_pages,
            "the trajectory's pages in the store",
        )
        return answer


@pytest.fixture
def trajectory(new_tokens: NewTokens) -> Trajectory:
    return Trajectory(new_tokens)


def test_the_step_after_a_move_finds_its_pages_and_answers_alike(
    worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str
) -> None:
    last = trajectory.run(worker_a)
    status = worker_a.move(name, worker_b.shim_url, tokens=last.tokens)
    assert (status["state"], status["fault"]) == ("landed", None), status
    assert status["tokens_landed"] == last.full_pages
    # The source keeps what others may share, until it needs the room; the target has all.
    assert worker_a.residency(last.tokens)["store"] == last.full_pages // PAGE
    assert worker_b.residency(last.tokens)["store"] == last.full_pages // PAGE
    prompt = trajectory.next_prompt()
    moved = worker_b.generate(prompt, NEW)
    assert moved.cached >= 0.95 * last.full_pages
    assert moved.cached == last.full_pages
    assert_same_answer(moved, worker_a.generate(prompt, NEW))


def test_a_move_by_request_id_needs_nobody_to_know_the_tokens(
    worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str
) -> None:
    trajectory.run(worker_a, 2)
    rid = "5f1c0b6d2a8e4b7f9c3d1e0a7b6c5d4e"
    last = trajectory.step(worker_a, rid=rid)
    status = worker_a.move(name, worker_b.shim_url, rid=rid)
    assert (status["state"], status["tokens_landed"]) == ("landed", last.full_pages), status
    assert worker_b.generate(trajectory.next_prompt(), NEW).cached == last.full_pages
    unknown = worker_a.move(f"{name}-2", worker_b.shim_url, rid="0" * 32)
    assert (unknown["state"], unknown["fault"]) == ("failed", "nothing_to_move")


def test_a_prefix_with_a_salt_of_its_own_moves_by_request_id(
    worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str
) -> None:
    rid = "6f1c0b6d2a8e4b7f9c3d1e0a7b6c5d4e"
    salted = {"cache_salt": "tenant-7", "extra_key": "weights-1"}
    last = trajectory.step(worker_a, rid=rid, **salted)
    status = worker_a.move(name, worker_b.shim_url, rid=rid)
    assert (status["state"], status["tokens_landed"]) == ("landed", last.full_pages), status
    prompt = trajectory.next_prompt()
    assert worker_b.generate(prompt, NEW).cached == 0  # another's namespace
    assert worker_b.generate(prompt, NEW, **salted).cached == last.full_pages


def test_a_prefix_is_warmed_before_its_step_comes(
    worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str
) -> None:
    last = trajectory.run(worker_a, 3)
    assert worker_a.move(name, worker_b.shim_url, tokens=last.tokens)["state"] == "landed"
    warmed = worker_b.ask_shim("POST", "/shim/v1/warm", {"tokens": last.tokens})
    assert warmed == {"had": 0, "loaded": last.full_pages}
    again = worker_b.ask_shim("POST", "/shim/v1/warm", {"tokens": last.tokens})
    assert again == {"had": last.full_pages, "loaded": 0}
    step = worker_b.generate(trajectory.next_prompt(), NEW)
    assert step.meta["cached_tokens_details"]["host"] == last.full_pages


def test_there_and_back_again(worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str) -> None:
    trajectory.run(worker_a, 2)
    assert trajectory.last is not None
    assert worker_a.move(f"{name}-1", worker_b.shim_url, tokens=trajectory.last.tokens)["state"] == "landed"
    on_b = trajectory.run(worker_b, 2)
    status = worker_b.move(f"{name}-2", worker_a.shim_url, tokens=on_b.tokens)
    assert (status["state"], status["tokens_landed"]) == ("landed", on_b.full_pages), status
    prompt = trajectory.next_prompt()
    back = worker_a.generate(prompt, NEW)
    assert back.cached == on_b.full_pages
    assert_same_answer(back, worker_b.generate(prompt, NEW))


def test_a_long_move_is_quicker_than_its_prefill_or_is_declined(
    worker_a: Worker, worker_b: Worker, new_tokens: NewTokens, name: str, record_property: Any
) -> None:
    tokens = new_tokens(4000)
    last = worker_a.generate(tokens, 1)
    wait_until(
        lambda: (worker_a.residency(tokens)["store"] or 0) * PAGE >= last.full_pages, "pages in the store"
    )
    prefill = worker_b.generate(new_tokens(4000), 1).meta["e2e_latency"]
    # What re-prefill costs is both the worth of the move and all the time it has.
    status = worker_a.move(name, worker_b.shim_url, tokens=tokens, worth_s=prefill, deadline_s=prefill)
    said = f"4,000 tokens: re-prefill {prefill:.3f} s, {status['state']} after {status['seconds']:.3f} s"
    print(said)
    record_property("move", said)
    moved = worker_b.generate(tokens, 4)
    if status["state"] == "landed":
        assert status["seconds"] <= prefill
        assert moved.cached >= 0.95 * last.full_pages
    else:
        # The shim says why, and the next step does not wait for it.
        assert status["fault"] in {"not_worth_it", "deadline"}, status
        assert status["detail"]
    assert_same_answer(moved, worker_a.generate(tokens, 4))


def test_a_move_that_cannot_pay_is_declined_with_its_reason(
    worker_a: Worker, worker_b: Worker, trajectory: Trajectory, name: str
) -> None:
    """The shim has moved before, so it knows its rate."""
    last = trajectory.run(worker_a, 1)
    status = worker_a.move(name, worker_b.shim_url, tokens=last.tokens, worth_s=1e-6)
    assert (status["state"], status["fault"]) == ("declined", "not_worth_it")
    assert "re-prefill" in status["detail"]
    assert status["bytes_moved"] == 0
    # It goes on where it was.
    assert worker_a.generate(trajectory.next_prompt(), NEW).cached == last.full_pages
