"""Moves that go wrong between two real SGLang servers: the trajectory goes on, nothing is wrong or lost.

Whatever happens, the next step answers as it would have without a move; what of its prefix did not arrive is
computed again.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from .road import road_to
from .workers import PAGE, Answer, Worker, assert_same_answer, engine_pid, wait_until

NewTokens = Callable[[int], list[int]]

LENGTH, NEW = 1000, 16
PAGES = (LENGTH + NEW - 1) // PAGE
PAGE_BYTES = 16 * 1024
HALF_WAY = PAGES // 2 * PAGE_BYTES


@pytest.fixture
def on_a(worker_a: Worker, new_tokens: NewTokens) -> Answer:
    """A step that ran on A, with its pages in the store."""
    answer = worker_a.generate(new_tokens(LENGTH), NEW)
    wait_until(lambda: worker_a.residency(answer.tokens)["store"] == PAGES, "the pages in the store of A")
    return answer


@pytest.fixture
def goes_on(worker_a: Worker, worker_b: Worker, new_tokens: NewTokens) -> Callable[[Answer], Answer]:
    """The next step on B answers as on A, which never moved."""

    def check(last: Answer) -> Answer:
        prompt = [*last.tokens, *new_tokens(40)]
        moved = worker_b.generate(prompt, NEW)
        assert_same_answer(moved, worker_a.generate(prompt, NEW))
        return moved

    return check


def nothing_left(*workers: Worker) -> bool:
    """No migration runs and none is half received."""
    return all(worker.ask_shim("GET", "/shim/v1/health")["migrations"] == 0 for worker in workers)


def test_a_move_that_is_cancelled_in_the_middle(
    worker_a: Worker, worker_b: Worker, on_a: Answer, goes_on: Callable[[Answer], Answer], name: str
) -> None:
    with road_to(worker_b, blocked_after=HALF_WAY) as road:
        worker_a.begin_move(name, road.url, tokens=on_a.tokens)
        assert road.blocked.wait(60)
        status = worker_a.ask_shim("DELETE", f"/shim/v1/migrations/{name}")
        assert (status["state"], status["fault"]) == ("cancelled", "cancelled")
    wait_until(lambda: nothing_left(worker_a, worker_b), "both shims at rest")
    assert worker_a.residency(on_a.tokens)["store"] == PAGES  # the owner keeps its pages
    assert goes_on(on_a).cached < on_a.full_pages


def test_a_page_that_arrives_broken_is_sent_again(
    worker_a: Worker, worker_b: Worker, on_a: Answer, goes_on: Callable[[Answer], Answer], name: str
) -> None:
    with road_to(worker_b, flipped_at=HALF_WAY) as road:
        status = worker_a.move(name, road.url, tokens=on_a.tokens)
    wait_until(lambda: nothing_left(worker_a, worker_b), "both shims at rest")
    moved = goes_on(on_a)
    if status["state"] == "landed":
        assert road.connections > 1  # over a new connection
        assert moved.cached == status["tokens_landed"] == on_a.full_pages
    else:
        assert status["fault"] == "checksum", status
        assert moved.cached < on_a.full_pages


def test_weights_that_change_in_the_middle_end_the_move_and_void_the_pages(
    worker_a: Worker, worker_b: Worker, on_a: Answer, goes_on: Callable[[Answer], Answer], name: str
) -> None:
    before = worker_a.handshake()["namespace"]["weight_version"]
    after = f"{name}-weights"
    with road_to(worker_b, blocked_after=HALF_WAY) as road:
        worker_a.begin_move(name, road.url, tokens=on_a.tokens)
        assert road.blocked.wait(60)
        worker_b.update_weights(after)
        road.open()
        status = worker_a.ended(name)
    assert status["fault"] in {"weights_changed", "mismatch"}, status
    # A still has the old weights: nothing fits until it has the new ones too.
    refused = worker_a.move(f"{name}-2", worker_b.shim_url, tokens=on_a.tokens)
    assert (refused["state"], refused["fault"]) == ("failed", "mismatch")
    assert refused["detail"] == f"weight_version: {before} here, {after} there"
    assert worker_b.generate([*on_a.tokens, 7, 8, 9], NEW).cached == 0
    worker_a.update_weights(after)
    # Pages of the old weights are void on A too: the prefix is computed again.
    assert worker_a.residency(on_a.tokens)["store"] == 0
    again = worker_a.generate(on_a.prompt, NEW)
    assert again.cached == 0
    wait_until(lambda: worker_a.residency(again.tokens)["store"] == PAGES, "pages of the new weights")
    landed = worker_a.move(f"{name}-3", worker_b.shim_url, tokens=again.tokens)
    assert (landed["state"], landed["tokens_landed"]) == ("landed", again.full_pages), landed
    assert goes_on(again).cached == again.full_pages


def test_a_target_whose_engine_is_killed_in_the_middle(
    worker_a: Worker, worker_b: Worker, on_a: Answer, goes_on: Callable[[Answer], Answer], name: str
) -> None:
    """Its shim starts it again; what had arrived whole is used, the rest computed again."""

    def report() -> dict[str, Any]:
        return worker_b.report()

    life = report()["instance"]
    with road_to(worker_b, blocked_after=HALF_WAY) as road:
        worker_a.begin_move(name, road.url, tokens=on_a.tokens)
        assert road.blocked.wait(60)
        os.kill(engine_pid(worker_b), signal.SIGKILL)
        wait_until(lambda: report()["engine"] == "dead", "the shim to notice")
        road.open()
        status = worker_a.ended(name)
    assert status["state"] in {"landed", "failed"}, status
    worker_b.ready()
    assert report()["instance"] != life  # a new generation
    wait_until(lambda: nothing_left(worker_a, worker_b), "both shims at rest")
    goes_on(on_a)
