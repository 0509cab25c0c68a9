"""A step that one process began goes on in the book of another, and the trajectory counts on from it."""

from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_core import Answer, Scan

NAMES = ("trajectory_id", "source", "group_id", "sample", "parent_id", "step", "segment", "final")


def told(who: Any) -> tuple[Any, ...]:
    return tuple(getattr(who, name) for name in NAMES)


def elsewhere(scan: Scan) -> Scan:
    return Scan.from_bytes(scan.to_bytes())


@pytest.mark.parametrize("path", [None, "/t/task-7/v1/chat/completions"])
def test_a_running_step_keeps_its_number_and_the_next_is_recognised(
    caller: Any, chat: Any, path: str | None
) -> None:
    talk = chat.opening()
    for answer in ("One.", "Two."):
        caller.turn(talk, chat.says(answer), path=path)
        talk += [chat.says(answer), chat.user("Go on.")]
    running = caller.ask(talk, path=path)
    assert running.step == 2
    after = type(caller)(now=caller.now)
    facts = caller.facts({"messages": talk}, path=path)
    resumed = after.book.resume(running, elsewhere(facts.scan), "", after.now)
    assert told(resumed) == told(running)
    answer = Answer.from_bytes(chat.read(chat.says("Three.")).to_bytes())
    after.book.step_ended(resumed, Outcome.DONE, answer, after.now)
    following = after.ask([*talk, chat.says("Three."), chat.user("Go on.")], path=path)
    assert (following.trajectory_id, following.step) == (running.trajectory_id, 3)


def test_one_that_was_restored_as_under_way_is_the_same_step(caller: Any, chat: Any) -> None:
    talk = chat.opening()
    caller.turn(talk, chat.says("One."))
    talk += [chat.says("One."), chat.user("Go on.")]
    running = caller.ask(talk)
    after = type(caller)(now=caller.now)
    memory = caller.book.memory("", running.trajectory_id)
    assert memory is not None
    after.book._book.restore(
        "",
        running.trajectory_id,
        model="m",
        group_id=running.group_id,
        sample=running.sample,
        parent_id=None,
        steps=1,
        segments=1,
        last_seen=after.now,
        memory=memory,
    )
    resumed = after.book.resume(running, caller.facts({"messages": talk}).scan, "", after.now)
    assert told(resumed) == told(running)
    assert resumed.retry_of_step, "it was known: no new step is begun"
    after.book.step_ended(resumed, Outcome.DONE, chat.read(chat.says("Two.")), after.now)
    following = after.ask([*talk, chat.says("Two."), chat.user("Go on.")])
    assert (following.trajectory_id, following.step) == (running.trajectory_id, 2)


def test_a_repeat_of_a_resumed_step_whose_client_left_is_that_step(caller: Any, chat: Any) -> None:
    talk = chat.opening()
    running = caller.ask(talk)
    after = type(caller)(now=caller.now)
    resumed = after.book.resume(running, caller.facts({"messages": talk}).scan, "", after.now)
    after.book.client_left(resumed, None, after.now)
    again = after.ask(talk)
    assert (again.trajectory_id, again.step, again.retry_of_step) == (running.trajectory_id, 0, True)
    after.book.step_ended(resumed, Outcome.ABORTED, None, after.now)


def test_a_new_sample_of_a_resumed_opening_is_a_sibling(caller: Any, chat: Any) -> None:
    talk = chat.opening()
    running = caller.ask(talk)
    after = type(caller)(now=caller.now)
    after.book.resume(running, caller.facts({"messages": talk}).scan, "", after.now)
    sibling = after.ask(talk)
    assert sibling.trajectory_id != running.trajectory_id
    assert (sibling.group_id, sibling.sample) == (running.group_id, 1)


def test_what_a_request_says_of_itself_is_placed_alike_elsewhere(caller: Any, chat: Any) -> None:
    headers = {
        "x-heddle-trajectory-id": "run-1",
        "x-heddle-group": "g",
        "x-heddle-sample": "3",
        "x-stainless-retry-count": "1",
    }
    facts = caller.facts({"messages": chat.opening()}, headers=headers)
    here = caller.book.resolve(facts)
    there = caller.book.place(elsewhere(facts.scan), "", caller.now, caller.book.said(facts))
    assert told(there) == told(here)
    assert (there.source, there.group_id, there.sample) == ("header", "g", 3)
