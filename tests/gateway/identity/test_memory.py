"""What one process remembers of a conversation, taken up by the next: untagged requests are recognised."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from heddle_contracts.live_state import TrajectoryState
from heddle_contracts.steps import Outcome
from heddle_gateway.identity import Identity

Successor = Callable[..., Any]


@pytest.fixture
def successor(caller: Any) -> Successor:
    """``successor(identity, ...)``: a caller of a new book that took these trajectories up."""

    def begin(*known: Identity, change: Callable[[str], str] = lambda text: text) -> Any:
        after = type(caller)(now=caller.now)
        for who in known:
            memory = caller.book.memory("", who.trajectory_id)
            assert memory is not None
            state = TrajectoryState(
                trajectory_id=who.trajectory_id,
                tenant="",
                source=who.source,
                model="m",
                group_id=who.group_id,
                sample=who.sample,
                steps=who.step + 1,
                segment=who.segment,
                first_seen=0.0,
                last_seen=0.0,
            )
            after.book.restore(state, caller.now, change(memory))
        return after

    return begin


def test_a_conversation_goes_on(caller: Any, chat: Any, successor: Successor) -> None:
    talk = chat.opening()
    first = caller.turn(talk, chat.says("I will look.", ("c1", "{}")))
    after = successor(first)
    talk += [chat.says("I will look.", ("c1", "{}")), chat.result("c1")]
    second = after.turn(talk, chat.says("Done."))
    assert (second.trajectory_id, second.step, second.source) == (first.trajectory_id, 1, "history")
    third = after.ask([*talk, chat.says("Done."), chat.user("Thanks.")])
    assert (third.trajectory_id, third.step) == (first.trajectory_id, 2)


def test_siblings_stay_apart_and_are_counted_on(caller: Any, chat: Any, successor: Successor) -> None:
    talk = chat.opening()
    siblings = [caller.turn(talk, chat.says(f"Plan {number}.")) for number in range(4)]
    after = successor(*siblings)
    for number in reversed(range(4)):
        who = after.ask([*talk, chat.says(f"Plan {number}."), chat.user("Go on.")])
        assert (who.trajectory_id, who.step) == (siblings[number].trajectory_id, 1)
    new = after.ask(talk)
    assert (new.group_id, new.sample) == (siblings[0].group_id, 4)


def test_siblings_that_answered_alike_are_as_many_as_before(
    caller: Any, chat: Any, successor: Successor
) -> None:
    talk = chat.opening()
    siblings = [caller.turn(talk, chat.says("The same.")) for _ in range(5)]
    after = successor(*siblings)
    found = {after.ask([*talk, chat.says("The same."), chat.user("Go on.")]).trajectory_id for _ in siblings}
    assert found == {who.trajectory_id for who in siblings}


def test_a_step_that_was_under_way_is_repeated_as_the_same_step(
    caller: Any, chat: Any, successor: Successor
) -> None:
    talk = chat.opening()
    caller.turn(talk, chat.says("One."))
    talk += [chat.says("One."), chat.user("Go on.")]
    cut = caller.ask(talk)
    after = successor(cut)
    again = after.ask(talk, headers={"x-stainless-retry-count": "1"})
    assert (again.trajectory_id, again.step, again.retry_of_step) == (cut.trajectory_id, 1, True)


def test_a_compacted_history_is_recognised_by_its_evidence(
    caller: Any, chat: Any, successor: Successor
) -> None:
    talk = chat.opening()
    caller.turn(talk, chat.says("Read it.", ("call-77", "{}")))
    talk += [chat.says("Read it.", ("call-77", "{}")), chat.result("call-77")]
    who = caller.turn(talk, chat.says("A long analysis of the parser."))
    after = successor(who)
    short = [*chat.opening()[:1], chat.user("Summary."), chat.says("A long analysis of the parser.")]
    found = after.ask([*short, chat.user("Go on.")])
    assert (found.trajectory_id, found.segment) == (who.trajectory_id, 1)


@pytest.mark.parametrize("dialect", ["completions", "generate"])
def test_a_prompt_goes_on(caller: Any, successor: Successor, dialect: str) -> None:
    text = {"completions": "prompt", "generate": "text"}[dialect]
    first = caller.ask_body({text: "Once upon a time " * 40}, dialect=dialect)
    said = " there was a parser."
    body = {"choices": [{"index": 0, "text": said}]} if dialect == "completions" else {"text": said}
    caller.answer_body(first, body, dialect=dialect)
    after = successor(first)
    more = after.ask_body({text: "Once upon a time " * 40 + said + " And then"}, dialect=dialect)
    assert (more.trajectory_id, more.step) == (first.trajectory_id, 1)


def another_release(text: str) -> str:
    return json.dumps(json.loads(text) | {"release": "0.0.0"})


def too_long(text: str) -> str:
    return json.dumps(json.loads(text) | {"evidence": list(range(1000))})


@pytest.mark.parametrize(
    "change", [another_release, too_long, lambda _: "", lambda _: "{}", lambda text: text[:-1]]
)
def test_a_text_that_does_not_fit_leaves_the_name(
    caller: Any, chat: Any, successor: Successor, change: Callable[[str], str]
) -> None:
    talk = chat.opening()
    first = caller.turn(talk, chat.says("One."))
    after = successor(first, change=change)
    talk += [chat.says("One."), chat.user("Go on.")]
    assert after.ask(talk).trajectory_id != first.trajectory_id
    named = after.ask(talk, headers={"x-heddle-trajectory-id": first.trajectory_id})
    assert (named.trajectory_id, named.step) == (first.trajectory_id, 1)


def test_what_was_taken_up_is_forgotten_wholly(caller: Any, chat: Any, successor: Successor) -> None:
    siblings = [
        caller.turn(chat.opening(), chat.says(f"Plan {number}.", (f"c{number}", "{}"))) for number in range(3)
    ]
    after = successor(*siblings)
    assert after.book.keys_held() > 0
    for who in siblings:
        after.book.forget("", who.trajectory_id)
    assert (len(after.book), after.book.keys_held()) == (0, 0)


def test_nobody_and_nothing_have_no_memory(caller: Any) -> None:
    assert caller.book.memory("", "nobody") is None
    batch = caller.ask_body({"prompt": ["a", "b"]}, dialect="completions")
    caller.break_off(batch, Outcome.ABORTED)
    assert caller.book.memory("", batch.trajectory_id) is None
