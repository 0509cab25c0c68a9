"""What the book keeps, for how long, and how it counts the steps of a trajectory that is named."""

import time
from types import SimpleNamespace

import pytest
from heddle_contracts.steps import Outcome
from heddle_gateway.identity import TrajectoryBook, tenant_of

NAMED = {"x-session-id": "s"}
RETRY = {"x-session-id": "s", "x-stainless-retry-count": "1"}


def test_steps_of_a_named_trajectory_are_counted(caller, chat) -> None:
    history = chat.opening()
    for step in range(3):
        who = caller.turn(history, chat.says(f"answer {step}"), headers=NAMED)
        assert (who.trajectory_id, who.step, who.segment, who.is_new) == ("s", step, 0, step == 0)
        history = [*history, chat.says(f"answer {step}"), chat.user(f"next {step}")]


def test_a_marked_repeat_of_a_named_trajectory_is_the_same_step(caller, chat) -> None:
    caller.turn(chat.opening(), chat.says("one"), headers=NAMED)
    again = caller.ask(chat.opening(), headers=RETRY)
    assert (again.step, again.retry_of_step) == (0, True)


def test_an_unmarked_repeat_of_a_failed_step_is_the_same_step(caller, chat) -> None:
    caller.break_off(caller.ask(chat.opening(), headers=NAMED), Outcome.WORKER_LOST)
    again = caller.ask(chat.opening(), headers=NAMED)
    assert (again.step, again.retry_of_step) == (0, True)


def test_the_same_request_once_more_under_one_name_is_another_step(caller, chat) -> None:
    first = caller.ask(chat.opening(), headers=NAMED)
    parallel = caller.ask(chat.opening(), headers=NAMED)
    assert (first.step, parallel.step, parallel.retry_of_step, parallel.segment) == (0, 1, False, 0)


def test_a_repeat_finds_its_step_among_parallel_ones(caller, chat) -> None:
    first = caller.ask(chat.opening("one"), headers=NAMED)
    caller.ask(chat.opening("two"), headers=NAMED)
    caller.break_off(first)
    again = caller.ask(chat.opening("one"), headers=RETRY)
    assert (again.step, again.retry_of_step) == (0, True)


def test_a_rewritten_history_of_a_named_trajectory_opens_a_segment(caller, chat) -> None:
    caller.turn(chat.opening(), chat.says("one"), headers=NAMED)
    compacted = caller.ask([*chat.opening(), chat.user("a summary")], headers=NAMED)
    assert (compacted.step, compacted.segment) == (1, 0), "an extension without the answer keeps its segment"
    other = caller.ask([chat.opening()[0], chat.user("a summary, alone")], headers=NAMED)
    assert (other.step, other.segment) == (2, 1)


def test_a_side_call_with_another_system_prompt_opens_no_segment(caller, chat) -> None:
    caller.turn(chat.opening(), chat.says("one"), headers=NAMED)
    side = caller.turn([chat.system("Name this chat."), chat.user("x")], chat.says("Chat"), headers=NAMED)
    main = caller.ask([*chat.opening(), chat.says("one"), chat.user("go on")], headers=NAMED)
    assert (side.step, side.segment) == (1, 0)
    assert (main.step, main.segment) == (2, 0)


def test_one_name_of_two_tenants_is_two_trajectories(caller, chat) -> None:
    caller.ask(chat.opening(), headers={**NAMED, "authorization": "Bearer one"})
    other = caller.ask(chat.opening(), headers={**NAMED, "authorization": "Bearer two"})
    assert (other.step, other.is_new) == (0, True)


def test_resolving_changes_nothing(caller, chat) -> None:
    facts = caller.facts({"messages": chat.opening()})
    first, second = caller.book.resolve(facts), caller.book.resolve(facts)
    assert (first.is_new, second.is_new, first.sample, second.sample) == (True, True, 0, 0)
    assert (len(caller.book), caller.book.keys_held()) == (0, 0)


def test_a_forgotten_trajectory_begins_anew(caller, chat) -> None:
    who = caller.turn(chat.opening(), chat.says("one"))
    caller.book.forget("", who.trajectory_id)
    caller.book.forget("nobody", "unknown")
    assert (len(caller.book), caller.book.keys_held()) == (0, 0)
    following = caller.ask([*chat.opening(), chat.says("one"), chat.user("go on")])
    assert following.is_new


def test_a_step_that_ends_after_its_trajectory_was_forgotten_leaves_nothing_behind(caller, chat) -> None:
    who = caller.ask(chat.opening())
    caller.book.forget("", who.trajectory_id)
    caller.answer(who, chat.says("one"))
    assert (len(caller.book), caller.book.keys_held()) == (0, 0)


def test_the_book_stays_within_its_capacity_and_drops_who_was_seen_longest_ago(caller, chat) -> None:
    caller.book = TrajectoryBook(capacity=50)
    for number in range(400):
        caller.turn(chat.opening(f"task {number}"), chat.says(f"answer {number}", (f"call {number}", "{}")))
    assert len(caller.book) == 50
    kept = caller.book.keys_held()
    for number in range(400, 800):
        caller.turn(chat.opening(f"task {number}"), chat.says(f"answer {number}", (f"call {number}", "{}")))
    assert caller.book.keys_held() == kept

    def followed(number: int) -> str:
        said = chat.says(f"answer {number}", (f"call {number}", "{}"))
        return caller.ask([*chat.opening(f"task {number}"), said, chat.user("go on")]).source

    assert followed(799) == "history"
    assert followed(700) == "history-new"


def test_a_long_trajectory_takes_no_more_keys_than_a_short_one(caller, chat) -> None:
    history = chat.opening()
    sizes = []
    for step in range(60):
        said = chat.says(f"answer {step}", (f"call {step}", "{}"))
        caller.turn(history, said)
        history = [*history, said, chat.result(f"call {step}")]
        sizes.append(caller.book.keys_held())
    assert sizes[59] == sizes[10]


def test_who_has_been_idle_too_long_is_dropped(caller, chat) -> None:
    caller.book = TrajectoryBook(idle_ttl_s=100.0)
    caller.turn(chat.opening("old"), chat.says("one"))
    caller.now += 101.0
    caller.turn(chat.opening("new"), chat.says("one"))
    assert len(caller.book) == 1


def test_who_has_a_step_in_flight_is_never_dropped(caller, chat) -> None:
    caller.book = TrajectoryBook(capacity=3, idle_ttl_s=100.0)
    running = caller.ask(chat.opening("running"))
    for number in range(20):
        caller.turn(chat.opening(f"{number}"), chat.says("x"))
        caller.now += 200.0
    caller.answer(running, chat.says("at last"))
    following = caller.ask([*chat.opening("running"), chat.says("at last"), chat.user("go on")])
    assert following.trajectory_id == running.trajectory_id


def test_a_step_starts_and_ends_once(caller, chat) -> None:
    who = caller.ask(chat.opening())
    with pytest.raises(ValueError, match="has started before"):
        caller.book.step_started(who)
    caller.answer(who, chat.says("one"))
    with pytest.raises(ValueError, match="is not running"):
        caller.break_off(who)
    never = caller.book.resolve(caller.facts({"messages": chat.opening()}))
    with pytest.raises(ValueError, match="is not running"):
        caller.break_off(never)


def test_a_late_end_of_an_older_attempt_does_not_undo_a_done_step(caller, chat) -> None:
    first = caller.ask(chat.opening(), headers=NAMED)
    again = caller.ask(chat.opening(), headers=RETRY)
    caller.answer(again, chat.says("one"))
    caller.break_off(first)
    assert caller.ask(chat.opening(), headers=NAMED).retry_of_step is False


def test_ids_made_for_untagged_trajectories_come_from_the_maker_given(caller, chat) -> None:
    caller.book = TrajectoryBook(new_id=lambda: "mine")
    assert caller.ask(chat.opening()).trajectory_id == "mine"


def test_a_prompt_sent_thousands_of_times_costs_no_more_than_at_first(caller, chat) -> None:
    facts = caller.facts({"messages": chat.opening()}, headers={"x-stainless-retry-count": "0"})
    answer = chat.read(chat.says("always the same answer, as from a load test's mock"))

    def round_of_requests() -> float:
        start = time.perf_counter()
        for _ in range(100):
            who = caller.book.resolve(facts)
            caller.book.step_started(who)
            caller.book.step_ended(who, Outcome.DONE, answer, 1.0)
        return time.perf_counter() - start

    early = min(round_of_requests() for _ in range(5))
    for _ in range(50):
        round_of_requests()
    late = min(round_of_requests() for _ in range(5))
    assert len(caller.book) == 6_000
    # A search through the siblings would make it thirty times as much.
    assert late < early * 5


@pytest.mark.parametrize("headers", [NAMED, {}])
def test_a_client_that_hangs_up_and_comes_back_at_once_repeats_its_step(caller, chat, headers) -> None:
    caller.turn(chat.opening(), chat.says("one"), headers=headers)
    longer = [*chat.opening(), chat.says("one"), chat.user("go on")]
    left = caller.ask(longer, headers=headers)
    caller.book.client_left(left, None, caller.now)
    again = caller.ask(longer, headers=headers)
    caller.break_off(left)  # the engine has stopped
    assert (again.trajectory_id, again.step, again.retry_of_step) == (left.trajectory_id, 1, True)
    assert again.segment == 0
    caller.answer(again, chat.says("two"))
    with pytest.raises(ValueError, match="not running"):
        caller.break_off(left)


def test_a_restored_trajectory_is_counted_on_under_its_name(caller, chat) -> None:
    before = caller.turn(chat.opening(), chat.says("one"), headers=NAMED)
    past = SimpleNamespace(
        trajectory_id="s",
        tenant=tenant_of({}),
        model="m",
        group_id=before.group_id,
        sample=3,
        parent_id="root",
        steps=7,
        segments=2,
    )
    caller.book = TrajectoryBook()
    caller.book.restore(past, caller.now)
    history = [*chat.opening(), chat.says("one"), chat.user("two")]
    who = caller.turn(history, chat.says("two"), headers=NAMED)
    assert (who.step, who.segment, who.is_new, who.retry_of_step) == (7, 1, False, False)
    assert (who.group_id, who.sample, who.parent_id) == (before.group_id, 3, "root")
    # From here on its history is known, so it is found without its name as well.
    following = caller.ask([*history, chat.says("two"), chat.user("three")])
    assert (following.trajectory_id, following.step) == ("s", 8)
    # A new sample of the prompt does not take a number that is taken.
    other = caller.ask(chat.opening())
    assert (other.group_id, other.sample) == (before.group_id, 4)


def test_restored_trajectories_are_bounded_and_age(caller, chat) -> None:
    def past(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            trajectory_id=name,
            tenant="",
            model=None,
            group_id="theirs",
            sample=None,
            parent_id=None,
            steps=1,
            segments=1,
        )

    caller.book = TrajectoryBook(capacity=3, idle_ttl_s=100.0)
    for number in range(5):
        caller.book.restore(past(f"t{number}"), float(number))
    assert len(caller.book) == 3
    caller.now = 200.0
    assert caller.ask(chat.opening(), headers=NAMED).step == 0
    assert len(caller.book) == 2
