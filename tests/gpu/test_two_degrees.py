"""What ``tests/real_sglang`` asserts on the CPU, on GPUs: priorities, and KV moved between TP 1 and TP 2.

In bfloat16 two TP degrees add in another order, so greedy answers may part after some tokens; the logprobs of
the first one agree closely if the KV that was moved is right, and not at all if it is not.
"""

from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from ..real_sglang.crowd import Crowd, fill  # noqa: TID252  pytest names test folders so
from ..real_sglang.workers import PAGE, Answer, Worker, wait_until  # noqa: TID252

NewTokens = Callable[[int], list[int]]

NEW = 16
CLOSE = 0.25
_seeds = count(1)


@pytest.fixture
def new_tokens() -> NewTokens:
    random = Random(next(_seeds))
    return lambda length: [random.randrange(1000, 100_000) for _ in range(length)]


def in_store(worker: Worker, answer: Answer) -> Answer:
    wait_until(
        lambda: (worker.residency(answer.tokens)["store"] or 0) * PAGE >= answer.full_pages,
        f"pages in the store of {worker.name}",
    )
    return answer


def assert_close(moved: Answer, stayed: Answer) -> None:
    assert abs(moved.logprobs[0] - stayed.logprobs[0]) < CLOSE


def test_the_handshakes_fit(tp1: Worker, tp2: Worker) -> None:
    one, two = tp1.handshake(), tp2.handshake()
    assert (one["cannot_migrate"], two["cannot_migrate"]) == (None, None)
    assert (one["engine"]["tp_size"], two["engine"]["tp_size"]) == (1, 2)
    assert one["namespace"]["model"] == two["namespace"]["model"]
    assert {"set_priority", "warm", "keep_decoded_kv"} <= set(one["engine"]["features"])


def test_from_one_gpu_to_two_and_back(tp1: Worker, tp2: Worker, new_tokens: NewTokens) -> None:
    on_one = in_store(tp1, tp1.generate(new_tokens(2000), NEW))
    there = tp1.move("there", tp2.shim_url, tokens=on_one.tokens)
    assert (there["state"], there["tokens_landed"]) == ("landed", on_one.full_pages), there
    prompt = [*on_one.tokens, *new_tokens(60)]
    on_two = tp2.generate(prompt, NEW)
    assert on_two.cached >= 0.95 * on_one.full_pages
    assert_close(on_two, tp1.generate(prompt, NEW))

    in_store(tp2, on_two)
    back = tp2.move("back", tp1.shim_url, tokens=on_two.tokens)
    assert (back["state"], back["tokens_landed"]) == ("landed", on_two.full_pages), back
    longer = [*on_two.tokens, *new_tokens(60)]
    home = tp1.generate(longer, NEW)
    assert home.cached >= 0.95 * on_two.full_pages
    assert_close(home, tp2.generate(longer, NEW))


def test_a_long_move_is_quicker_than_its_prefill_or_is_declined(
    tp1: Worker, tp2: Worker, new_tokens: NewTokens
) -> None:
    tokens = new_tokens(4000)
    last = in_store(tp1, tp1.generate(tokens, 1))
    prefill = tp2.generate(new_tokens(4000), 1).meta["e2e_latency"]
    status = tp1.move("long", tp2.shim_url, tokens=tokens, worth_s=prefill, deadline_s=prefill)
    print(f"4,000 tokens: re-prefill {prefill:.3f} s, {status['state']} after {status['seconds']:.3f} s")
    if status["state"] == "landed":
        assert status["seconds"] <= prefill
        assert tp2.generate(tokens, 4).cached >= 0.95 * last.full_pages
    else:
        assert status["fault"] in {"not_worth_it", "deadline"}, status


def test_a_prefix_is_warmed_before_its_step_comes(tp1: Worker, tp2: Worker, new_tokens: NewTokens) -> None:
    last = in_store(tp1, tp1.generate(new_tokens(1000), NEW))
    assert tp1.move("warm", tp2.shim_url, tokens=last.tokens)["state"] == "landed"
    warmed = tp2.ask_shim("POST", "/shim/v1/warm", {"tokens": last.tokens})
    assert warmed == {"had": 0, "loaded": last.full_pages}
    step = tp2.generate([*last.tokens, *new_tokens(20)], NEW)
    assert step.meta["cached_tokens_details"]["host"] == last.full_pages


@pytest.mark.parametrize("degree", [1, 2])
def test_priorities_order_and_preempt(tp1: Worker, tp2: Worker, degree: int, new_tokens: NewTokens) -> None:
    worker = {1: tp1, 2: tp2}[degree]
    with Crowd(worker) as crowd:
        fill(crowd, worker, new_tokens, 20, 4000)
        crowd.ask("slightly", new_tokens(16), 8, 25)
        crowd.ask("much", new_tokens(16), 8, 100)
        answers = crowd.all()
    assert crowd.ended[0] == "much"
    retracted = sum(answer.meta["num_retractions"] for answer in answers.values())
    assert retracted == 1
