"""A trajectory between TP 1 and TP 2, both real, and back: cached tokens and the same greedy answers.

And a target whose page store is nearly full.
"""

from collections.abc import Callable

import pytest

from .workers import PAGE, Worker, assert_same_answer, in_store, with_like_weights

NewTokens = Callable[[int], list[int]]

NEW = 16


@pytest.fixture(scope="module")
def worker_tp2(worker_a: Worker, in_place_of_b: Callable[..., Worker]) -> Worker:
    """Two ranks on two cores, and a page store that promises no more than 2 MB."""
    worker = in_place_of_b(
        "tp2",
        engine_options=("--tp-size", "2"),
        shim_options=("--store-bytes", "4M"),
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
    )
    worker.ready()
    with_like_weights(worker_a, worker, "alike-in-two-degrees")
    return worker


def test_the_handshake_of_two_ranks(worker_a: Worker, worker_tp2: Worker) -> None:
    layout = worker_tp2.handshake()["namespace"]["layout"]
    assert (layout["tp_size"], layout["kv_heads"]) == (2, 2)
    assert {"set_priority", "warm", "history"} <= set(worker_tp2.handshake()["engine"]["features"])


def test_from_one_rank_to_two_and_back(
    worker_a: Worker, worker_tp2: Worker, new_tokens: NewTokens, name: str
) -> None:
    on_one = in_store(worker_a, worker_a.generate(new_tokens(700), NEW))
    there = worker_a.move(f"{name}-1", worker_tp2.shim_url, tokens=on_one.tokens)
    assert (there["state"], there["tokens_landed"]) == ("landed", on_one.full_pages), there
    prompt = [*on_one.tokens, *new_tokens(60)]
    on_two = worker_tp2.generate(prompt, NEW)
    assert on_two.cached == on_one.full_pages
    assert_same_answer(on_two, worker_a.generate(prompt, NEW))

    in_store(worker_tp2, on_two)
    back = worker_tp2.move(f"{name}-2", worker_a.shim_url, tokens=on_two.tokens)
    assert (back["state"], back["tokens_landed"]) == ("landed", on_two.full_pages), back
    longer = [*on_two.tokens, *new_tokens(60)]
    home = worker_a.generate(longer, NEW)
    assert home.cached == on_two.full_pages
    assert_same_answer(home, worker_tp2.generate(longer, NEW))


def test_both_ranks_take_a_command_in_the_same_step(worker_tp2: Worker, new_tokens: NewTokens) -> None:
    """A divergence would hang them; the engine still answers."""
    said = worker_tp2.ask_shim("POST", "/shim/v1/priorities", {"priorities": {"a" * 32: 7}})
    assert said == {"applied": 0, "remembered": 1}
    tokens = new_tokens(100)
    assert worker_tp2.generate(tokens, 4, rid="a" * 32).meta["finish_reason"]["type"] == "length"
    warmed = worker_tp2.ask_shim("POST", "/shim/v1/warm", {"tokens": tokens})
    assert warmed["had"] == len(tokens) // PAGE * PAGE


def test_a_target_without_room_refuses_and_loses_nothing(
    worker_a: Worker, worker_tp2: Worker, new_tokens: NewTokens, name: str
) -> None:
    mine = worker_tp2.generate(new_tokens(300), NEW)
    big = in_store(worker_a, worker_a.generate(new_tokens(3000), NEW))
    status = worker_a.move(name, worker_tp2.shim_url, tokens=big.tokens)
    assert (status["state"], status["fault"]) == ("failed", "target_full"), status
    assert status["pages_moved"] == 0
    again = [*mine.tokens, 5, 6, 7]
    assert worker_tp2.generate(again, NEW).cached == mine.full_pages
    prompt = [*big.tokens, *new_tokens(20)]
    assert_same_answer(worker_tp2.generate(prompt, NEW), worker_a.generate(prompt, NEW))
