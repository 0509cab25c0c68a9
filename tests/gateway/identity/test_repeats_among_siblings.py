"""Marked repeats where several samples of a prompt show the same: whose step is it?

An attempt may have failed without ever coming here (refused connections, a network that drops requests), so
a mark alone does not say that one of the known turns is meant.
"""

import pytest
from heddle_contracts.steps import Outcome

FIRST = {"x-stainless-retry-count": "0"}
RETRY = {"x-stainless-retry-count": "1"}
LAST_RETRY = {"x-stainless-retry-count": "2"}


@pytest.mark.parametrize("between_s", [0.001, 0.9])
def test_agents_that_were_started_before_the_gateway_are_as_many_as_they_are(caller, chat, between_s) -> None:
    # Every first request here is a repeat already: the attempts before it were refused.
    seen = []
    for _ in range(16):
        caller.now += between_s - 1.0  # ask() adds a second
        seen.append(caller.ask(chat.opening(), headers=RETRY))
    assert len({who.trajectory_id for who in seen}) == 16
    assert not any(who.retry_of_step for who in seen)


def test_a_repeat_of_an_opening_is_not_put_on_a_sibling_that_runs_well(caller, chat) -> None:
    siblings = [caller.ask(chat.opening(), headers=FIRST) for _ in range(3)]
    lost_on_its_way = caller.ask(chat.opening(), headers=RETRY)
    assert lost_on_its_way.trajectory_id not in {who.trajectory_id for who in siblings}


@pytest.mark.parametrize("done", [False, True])
def test_a_repeat_too_soon_for_the_sdk_is_another_agents(caller, chat, done) -> None:
    first = caller.ask(chat.opening(), headers=FIRST)
    if done:
        caller.answer(first, chat.says("one"))
    caller.now -= 0.9
    assert caller.ask(chat.opening(), headers=RETRY).trajectory_id != first.trajectory_id


def test_a_second_repeat_follows_a_first_one(caller, chat) -> None:
    first = caller.ask(chat.opening(), headers=RETRY)
    again = caller.ask(chat.opening(), headers=LAST_RETRY)
    assert (again.trajectory_id, again.retry_of_step) == (first.trajectory_id, True)


def test_a_repeat_that_never_came_before_is_the_step_of_the_sibling_that_waits(caller, chat) -> None:
    waiting, ahead = (caller.turn(chat.opening(), chat.says("same")) for _ in range(2))
    longer = [*chat.opening(), chat.says("same"), chat.user("go on")]
    running = caller.ask(longer, headers=FIRST)
    assert running.trajectory_id in {waiting.trajectory_id, ahead.trajectory_id}
    other = caller.ask(longer, headers=RETRY)
    assert {running.trajectory_id, other.trajectory_id} == {waiting.trajectory_id, ahead.trajectory_id}
    assert (other.step, other.retry_of_step) == (1, False)


def test_a_repeat_whose_answer_was_lost_changes_places_with_a_sibling_and_the_numbers_stay(
    caller, chat
) -> None:
    samples = [caller.turn(chat.opening(), chat.says("same")) for _ in range(2)]
    longer = [*chat.opening(), chat.says("same"), chat.user("go on")]
    lost = caller.turn(longer, chat.says("two"), headers=FIRST)
    repeated = caller.turn(longer, chat.says("two"), headers=RETRY)
    siblings_own = caller.turn(longer, chat.says("two"), headers=FIRST)
    assert lost.step == repeated.step == siblings_own.step == 1
    longest = [*longer, chat.says("two"), chat.user("more")]
    last = [caller.ask(longest, headers=FIRST) for _ in range(2)]
    assert {who.trajectory_id for who in last} == {who.trajectory_id for who in samples}
    assert [who.step for who in last] == [2, 2]


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.REJECTED])
def test_a_failed_sibling_comes_before_one_that_waits(caller, chat, outcome) -> None:
    samples = [caller.turn(chat.opening(), chat.says("same")) for _ in range(2)]
    longer = [*chat.opening(), chat.says("same"), chat.user("go on")]
    failed = caller.ask(longer, headers=FIRST)
    caller.break_off(failed, outcome)
    again = caller.ask(longer, headers=RETRY)
    assert (again.trajectory_id, again.retry_of_step) == (failed.trajectory_id, True)
    other = caller.ask(longer, headers=FIRST)
    assert {again.trajectory_id, other.trajectory_id} == {who.trajectory_id for who in samples}


def test_a_compacted_history_goes_to_the_sibling_that_gave_its_last_answer(caller, chat) -> None:
    behind, ahead = (caller.turn(chat.opening(), chat.says("one", ("c1", "{}"))) for _ in range(2))
    step = [*chat.opening(), chat.says("one", ("c1", "{}")), chat.result("c1", "a long result")]
    second = caller.turn(step, chat.says("two", ("c2", "{}")))
    trimmed = [
        *chat.opening(),
        chat.says("one", ("c1", "{}")),
        chat.result("c1", "[cut]"),
        chat.says("two", ("c2", "{}")),
        chat.result("c2"),
    ]
    who = caller.ask(trimmed)
    assert (who.source, who.trajectory_id, who.step) == ("history-rewritten", second.trajectory_id, 2)
    assert second.trajectory_id in {behind.trajectory_id, ahead.trajectory_id}
