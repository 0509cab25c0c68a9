"""Trajectories of one prompt share its pages: when one of them moves, the others can still be moved."""

from collections.abc import Callable

from .workers import PAGE, Answer, Worker, assert_same_answer, in_store

NewTokens = Callable[[int], list[int]]

PROMPT, OWN, RESULT, NEW = 400, 200, 60, 16


def test_siblings_move_one_after_the_other(
    worker_a: Worker, worker_b: Worker, new_tokens: NewTokens, name: str
) -> None:
    """Asked as the gateway asks. SGLang does not store again what it has stored once."""
    prompt = new_tokens(PROMPT)

    def begin(worker: Worker) -> Answer:
        return in_store(worker, worker.generate([*prompt, *new_tokens(OWN)], NEW))

    one, two = begin(worker_a), begin(worker_a)
    assert two.cached == PROMPT // PAGE * PAGE
    first = worker_a.move(f"{name}-1", worker_b.shim_url, tokens=one.tokens)
    assert (first["state"], first["tokens_landed"]) == ("landed", one.full_pages), first

    # Its next step at home, then its own move; only what B lacks is sent.
    two = in_store(worker_a, worker_a.generate([*two.tokens, *new_tokens(RESULT)], NEW))
    second = worker_a.move(f"{name}-2", worker_b.shim_url, tokens=two.tokens)
    assert (second["state"], second["tokens_landed"]) == ("landed", two.full_pages), second
    assert second["pages_present"] == PROMPT // PAGE
    # One that begins only now, and finds the prompt on A.
    three = begin(worker_a)
    third = worker_a.move(f"{name}-3", worker_b.shim_url, tokens=three.tokens)
    assert (third["state"], third["tokens_landed"]) == ("landed", three.full_pages), third

    after = [*two.tokens, *new_tokens(RESULT)]
    moved = worker_b.generate(after, NEW)
    assert moved.cached == two.full_pages
    assert_same_answer(moved, worker_a.generate(after, NEW))
