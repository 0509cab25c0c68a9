"""Untagged text and token prompts: a prompt that goes on with a known prompt and its answer."""

import pytest

RETRY = {"x-stainless-retry-count": "1"}
LONG = "The rules of the game, at some length. " * 40


def completed(text: str) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}


def generated(text: str, ids: list[int]) -> dict:
    meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 1, "completion_tokens": len(ids)}
    return {"text": text, "output_ids": ids, "meta_info": meta}


@pytest.mark.parametrize("prompt", ["Q: 1+1?\n", LONG])
def test_a_text_prompt_that_goes_on_is_the_next_step(caller, prompt) -> None:
    first = caller.ask_body({"prompt": prompt}, dialect="completions")
    caller.answer_body(first, completed("A: 2\n"), dialect="completions")
    longer = prompt + "A: 2\n" + "Q: 2+2?\n"
    second = caller.ask_body({"prompt": longer}, dialect="completions")
    caller.answer_body(second, completed("A: 4\n"), dialect="completions")
    third = caller.ask_body({"prompt": longer + "A: 4\n" + "Q: 3+3?\n"}, dialect="completions")
    assert [first.source, second.source, third.source] == ["history-new", "history", "history"]
    assert {first.trajectory_id} == {second.trajectory_id} == {third.trajectory_id}
    assert [first.step, second.step, third.step] == [0, 1, 2]


def test_token_prompts_go_on_with_the_tokens_of_the_answer(caller) -> None:
    prompt = list(range(300))
    samples = [caller.ask_body({"input_ids": prompt}, dialect="generate") for _ in range(3)]
    for at, who in enumerate(samples):
        caller.answer_body(who, generated("x", [1000 + at, 1]), dialect="generate")
    for at in (1, 2, 0):
        longer = [*prompt, 1000 + at, 1, 7, 8]
        who = caller.ask_body({"input_ids": longer}, dialect="generate")
        assert (who.trajectory_id, who.step) == (samples[at].trajectory_id, 1)


def test_a_prompt_that_only_begins_like_another_is_new(caller) -> None:
    first = caller.ask_body({"prompt": "Q: 1"}, dialect="completions")
    caller.answer_body(first, completed(" is one."), dialect="completions")
    other = caller.ask_body({"prompt": "Q: 1+1 is what?"}, dialect="completions")
    assert other.source == "history-new"


def test_samples_of_one_prompt_stay_apart_and_repeats_are_repeats(caller) -> None:
    first = caller.ask_body({"text": LONG}, dialect="generate")
    second = caller.ask_body({"text": LONG}, dialect="generate")
    assert first.trajectory_id != second.trajectory_id
    assert (first.group_id, first.sample) == (second.group_id, second.sample - 1)
    caller.break_off(second)
    again = caller.ask_body({"text": LONG}, dialect="generate", headers=RETRY)
    assert (again.trajectory_id, again.retry_of_step) == (second.trajectory_id, True)


def test_dialects_and_units_do_not_meet(caller) -> None:
    whos = [
        caller.ask_body({"prompt": "1 2"}, dialect="completions"),
        caller.ask_body({"input_ids": [1, 2]}, dialect="generate"),
        caller.ask_body({"messages": [{"role": "user", "content": "1 2"}]}),
    ]
    assert len({who.trajectory_id for who in whos}) == 3
    assert len({who.group_id for who in whos}) == 3


@pytest.mark.parametrize(
    ("body", "dialect"),
    [({"prompt": ["a", "b"]}, "completions"), ({"input_ids": [[1], [2]]}, "generate"), ({}, "chat")],
)
def test_a_batch_and_an_empty_request_are_calls_of_their_own(caller, body, dialect) -> None:
    first = caller.ask_body(body, dialect=dialect)
    second = caller.ask_body(body, dialect=dialect)
    assert first.trajectory_id != second.trajectory_id
    assert (first.source, first.group_id, first.sample) == ("anonymous", None, None)
    caller.answer_body(first, {"choices": []}, dialect="chat")
    caller.break_off(second)
    assert caller.book.keys_held() == 0


def test_a_prompt_of_hundreds_of_blocks_is_found_by_its_last(caller) -> None:
    prompt = "word " * 40_000
    first = caller.ask_body({"prompt": prompt}, dialect="completions")
    caller.answer_body(first, completed("end."), dialect="completions")
    longer = caller.ask_body({"prompt": prompt + "end." + "x" * 5000}, dialect="completions")
    assert longer.trajectory_id == first.trajectory_id
