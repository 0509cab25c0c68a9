"""The rules by which an untagged request finds its trajectory."""

import pytest
from heddle_contracts.steps import Outcome

FIRST = {"x-stainless-retry-count": "0"}
RETRY = {"x-stainless-retry-count": "1"}


def test_a_request_that_extends_a_known_history_is_its_next_step(caller, chat) -> None:
    history = chat.opening()
    first = caller.turn(history, chat.says("one"))
    second = caller.turn([*history, chat.says("one"), chat.user("go on")], chat.says("two"))
    third = caller.ask([*history, chat.says("one"), chat.user("go on"), chat.says("two"), chat.user("more")])
    assert [first.source, second.source, third.source] == ["history-new", "history", "history"]
    assert [first.step, second.step, third.step] == [0, 1, 2]
    assert {first.trajectory_id} == {second.trajectory_id} == {third.trajectory_id}
    assert (first.is_new, second.is_new, third.segment) == (True, False, 0)


def test_samples_of_one_prompt_are_trajectories_of_one_group(caller, chat) -> None:
    samples = [caller.ask(chat.opening()) for _ in range(5)]
    assert len({who.trajectory_id for who in samples}) == 5
    assert len({who.group_id for who in samples}) == 1
    assert [who.sample for who in samples] == [0, 1, 2, 3, 4]
    other = caller.ask(chat.opening("Another task."))
    assert other.group_id != samples[0].group_id
    assert other.sample == 0


def test_a_sample_begun_after_another_is_done_is_still_a_new_trajectory(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    assert caller.ask(chat.opening()).trajectory_id != first.trajectory_id


def test_siblings_are_told_apart_by_their_answers(caller, chat) -> None:
    samples = [caller.ask(chat.opening()) for _ in range(4)]
    for at in (2, 0, 3, 1):
        caller.answer(samples[at], chat.says(f"answer {at}"))
    for at in (1, 3, 0, 2):
        following = caller.ask([*chat.opening(), chat.says(f"answer {at}"), chat.user("go on")])
        assert following.trajectory_id == samples[at].trajectory_id


def test_siblings_with_the_same_words_are_told_apart_by_their_call_ids(caller, chat) -> None:
    samples = [caller.ask(chat.opening()) for _ in range(3)]
    for at, who in enumerate(samples):
        caller.answer(who, chat.says(None, (f"call_{at}", '{"command": "ls"}')))
    for at in (2, 0, 1):
        # As a client writes it back: parsed and written anew, null content left out.
        said = chat.says("", (f"call_{at}", '{"command":"ls"}'))
        following = caller.ask([*chat.opening(), said, chat.result(f"call_{at}")])
        assert following.trajectory_id == samples[at].trajectory_id


def test_siblings_with_identical_answers_are_each_continued_once(caller, chat) -> None:
    samples = [caller.turn(chat.opening(), chat.says("same")) for _ in range(3)]
    followers = [caller.ask([*chat.opening(), chat.says("same"), chat.user("go on")]) for _ in range(3)]
    assert {who.trajectory_id for who in followers} == {who.trajectory_id for who in samples}
    assert [who.step for who in followers] == [1, 1, 1]


def test_an_edited_answer_continues_the_conversation_that_has_waited_longest(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    caller.turn(chat.opening(), chat.says("two"))
    edited = caller.ask([*chat.opening(), chat.says("one, edited"), chat.user("go on")])
    assert (edited.source, edited.trajectory_id, edited.step) == ("history-edited", first.trajectory_id, 1)


def test_any_choice_of_several_may_be_continued(caller, chat) -> None:
    who = caller.ask(chat.opening())
    caller.answer(who, chat.says("left"), chat.says("right"))
    assert caller.ask([*chat.opening(), chat.says("right"), chat.user("go on")]).source == "history"


def test_reasoning_that_the_client_drops_does_not_matter(caller, chat) -> None:
    who = caller.turn(chat.opening(), chat.says("<think>hm</think>\nyes", reasoning_content="hm"))
    following = caller.ask([*chat.opening(), chat.says("yes"), chat.user("go on")])
    assert following.trajectory_id == who.trajectory_id


@pytest.mark.parametrize(
    "outcome", [Outcome.ABORTED, Outcome.WORKER_LOST, Outcome.REJECTED, Outcome.TIMED_OUT]
)
@pytest.mark.parametrize("headers", [{}, RETRY])
def test_the_same_history_after_a_failed_attempt_is_the_same_step(caller, chat, outcome, headers) -> None:
    first = caller.ask(chat.opening())
    caller.break_off(first, outcome)
    again = caller.ask(chat.opening(), headers=headers)
    assert (again.trajectory_id, again.step, again.retry_of_step) == (first.trajectory_id, 0, True)


def test_a_declared_retry_of_a_done_step_is_the_same_step(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    again = caller.ask(chat.opening(), headers=RETRY)
    assert (again.trajectory_id, again.step, again.retry_of_step) == (first.trajectory_id, 0, True)


def test_a_declared_retry_while_the_attempt_still_runs_is_the_same_step(caller, chat) -> None:
    first = caller.ask(chat.opening())
    again = caller.ask(chat.opening(), headers=RETRY)
    assert (again.trajectory_id, again.retry_of_step) == (first.trajectory_id, True)
    caller.break_off(first)
    caller.answer(again, chat.says("one"))
    following = caller.ask([*chat.opening(), chat.says("one"), chat.user("go on")])
    assert (following.trajectory_id, following.step) == (first.trajectory_id, 1)


def test_a_retry_count_of_zero_is_no_retry(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    fresh = caller.ask(chat.opening(), headers=FIRST)
    assert fresh.trajectory_id != first.trajectory_id


def test_a_retry_means_the_failed_sibling_not_one_that_runs(caller, chat) -> None:
    samples = [caller.ask(chat.opening(), headers=FIRST) for _ in range(3)]
    caller.break_off(samples[1])
    assert caller.ask(chat.opening(), headers=RETRY).trajectory_id == samples[1].trajectory_id


def test_a_new_sample_does_not_take_the_place_of_a_failed_one_whose_sdk_will_retry(caller, chat) -> None:
    failed = caller.ask(chat.opening(), headers=FIRST)
    caller.break_off(failed)
    fresh = caller.ask(chat.opening(), headers=FIRST)
    again = caller.ask(chat.opening(), headers=RETRY)
    assert fresh.trajectory_id != failed.trajectory_id
    assert (again.trajectory_id, again.retry_of_step) == (failed.trajectory_id, True)


def test_a_stream_that_broke_off_is_repeated_by_the_agent_without_a_mark(caller, chat) -> None:
    failed = caller.ask(chat.opening(), headers=FIRST)
    caller.answer(failed, chat.says("half an"), outcome=Outcome.WORKER_LOST)
    again = caller.ask(chat.opening(), headers=FIRST)
    assert (again.trajectory_id, again.step, again.retry_of_step) == (failed.trajectory_id, 0, True)


def test_a_failure_after_the_sdks_last_repeat_is_repeated_without_a_mark(caller, chat) -> None:
    for count in "012":
        who = caller.ask(chat.opening(), headers={"x-stainless-retry-count": count})
        caller.break_off(who, Outcome.REJECTED)
    again = caller.ask(chat.opening(), headers=FIRST)
    assert (again.trajectory_id, again.retry_of_step) == (who.trajectory_id, True)


def test_a_later_step_sampled_once_more_is_that_step(caller, chat) -> None:
    caller.turn(chat.opening(), chat.says("one"))
    longer = [*chat.opening(), chat.says("one"), chat.user("go on")]
    second = caller.turn(longer, chat.says("not parseable"))
    again = caller.ask(longer)
    assert (again.trajectory_id, again.step, again.retry_of_step) == (second.trajectory_id, 1, True)


def test_a_partial_answer_that_the_client_kept_is_continued(caller, chat) -> None:
    first = caller.ask(chat.opening())
    caller.answer(first, chat.says("half an ans"), outcome=Outcome.ABORTED)
    following = caller.ask([*chat.opening(), chat.says("half an ans"), chat.user("stop")])
    assert (following.trajectory_id, following.step) == (first.trajectory_id, 1)


def test_the_next_request_may_come_before_the_step_has_ended(caller, chat) -> None:
    # The client has the last byte; the gateway has not closed the account yet.
    first = caller.ask(chat.opening())
    following = caller.ask([*chat.opening(), chat.says("one"), chat.user("go on")])
    caller.answer(first, chat.says("one"))
    assert (following.trajectory_id, following.step) == (first.trajectory_id, 1)


def test_compaction_that_keeps_recent_messages_opens_a_segment(caller, chat) -> None:
    history = chat.opening()
    whos = []
    for step in range(6):
        said = chat.says(None, (f"call_{step}", "{}"))
        whos.append(caller.turn(history, said))
        history = [*history, said, chat.result(f"call_{step}")]
    compacted = [*history[:2], chat.user("Earlier steps left out."), *history[-4:]]
    who = caller.turn(compacted, chat.says("and on"))
    assert (who.source, who.trajectory_id) == ("history-rewritten", whos[0].trajectory_id)
    assert (who.step, who.segment) == (6, 1)
    following = caller.ask([*compacted, chat.says("and on"), chat.user("more")])
    assert (following.trajectory_id, following.step, following.segment) == (whos[0].trajectory_id, 7, 1)


def test_compaction_by_a_summary_of_the_models_own_opens_a_segment(caller, chat) -> None:
    caller.turn(
        chat.opening(), chat.says("A sibling's own words, long enough to be an anchor if they were shown.")
    )
    history = chat.opening()
    first = caller.ask(history)
    caller.answer(first, chat.says("step"))
    summary = "Found the fault: the parser reads one byte past the end of the buffer.\nNext: write the test."
    asked = [*history, chat.says("step"), chat.user("Summarise.")]
    caller.turn(asked, chat.says(f"<summary>\n{summary}\n</summary>"))
    who = caller.ask([*chat.opening(), chat.user(f"This session continues another one.\n\n{summary}")])
    assert (who.source, who.trajectory_id) == ("history-summary", first.trajectory_id)
    assert (who.step, who.segment) == (2, 1)


def test_compaction_without_any_trace_belongs_to_the_only_one_that_waits(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    who = caller.ask([*chat.opening(), chat.user("Notes of mine: nothing yet.")])
    assert (who.source, who.trajectory_id, who.segment) == ("history-opening", first.trajectory_id, 1)


def test_compaction_without_any_trace_is_not_guessed_among_siblings(caller, chat) -> None:
    siblings = {caller.turn(chat.opening(), chat.says(f"{at}")).trajectory_id for at in range(2)}
    who = caller.ask([*chat.opening(), chat.user("Notes of mine: nothing yet.")])
    assert who.trajectory_id not in siblings


def test_a_rollback_to_an_earlier_turn_opens_a_segment(caller, chat) -> None:
    history = chat.opening()
    for step in range(3):
        who = caller.turn(history, chat.says(f"answer {step}"))
        history = [*history, chat.says(f"answer {step}"), chat.user(f"next {step}")]
    back = caller.ask([*history[:3], chat.user("no, the other way")])
    assert (back.trajectory_id, back.step, back.segment) == (who.trajectory_id, 3, 1)


def test_a_system_prompt_that_changes_with_every_call_does_not_break_the_conversation(caller, chat) -> None:
    tail = chat.opening()[1:]
    first = caller.turn([chat.system("It is 10:00."), *tail], chat.says("one", ("c1", "{}")))
    longer = [*tail, chat.says("one", ("c1", "{}")), chat.result("c1")]
    second = caller.turn([chat.system("It is 10:01."), *longer], chat.says("two", ("c2", "{}")))
    third = caller.ask(
        [chat.system("It is 10:02."), *longer, chat.says("two", ("c2", "{}")), chat.result("c2")]
    )
    assert {first.trajectory_id} == {second.trajectory_id} == {third.trajectory_id}
    assert (third.source, third.step, third.segment) == ("history-drifted", 2, 0)


WORDS = "Thought: file {} is read one byte past the end of its buffer, so I look at it.\n<code>\nread({})\n"


def test_an_answer_to_which_the_client_added_is_the_same_conversation_and_segment(caller, chat) -> None:
    # smolagents' CodeAgent closes the block that its stop sequence cut open.
    siblings = [caller.ask(chat.opening()) for _ in range(3)]
    for at, who in enumerate(siblings):
        caller.answer(who, chat.says(WORDS.format(at, at)))
    for at, who in reversed(list(enumerate(siblings))):
        history = [*chat.opening(), chat.says(WORDS.format(at, at) + "</code>"), chat.user("Observation: 1")]
        following = caller.turn(history, chat.says(WORDS.format(at, "again")))
        assert (following.trajectory_id, following.source) == (who.trajectory_id, "history-edited")
        assert (following.step, following.segment) == (1, 0)
        # At its last step it asks for an answer in place of the agent's own system prompt.
        said = chat.says(WORDS.format(at, "again") + "</code>")
        last = caller.ask([chat.system("It got stuck."), *history[1:], said, chat.user("Observation: 2")])
        assert (last.trajectory_id, last.source) == (who.trajectory_id, "history-drifted")
        assert (last.step, last.segment) == (2, 0)


def test_tool_calls_that_the_client_writes_as_text_stay_in_their_conversation(caller, chat) -> None:
    # smolagents' ToolCallingAgent sends no tool_calls back.
    spoken = "I look up the weather first, since the answer depends on it: "
    first = caller.turn(chat.opening(), chat.says(spoken, ("c1", "{}")))
    text = spoken + "\nCalling tools:\n[{'id': 'c1', 'type': 'function'}]"
    following = caller.ask([*chat.opening(), chat.says(text), chat.user("Observation:\nsunny")])
    assert (following.trajectory_id, following.step, following.segment) == (first.trajectory_id, 1, 0)
    assert following.source == "history-edited"


def test_a_sub_agent_that_is_told_an_answer_is_not_that_conversation(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says(WORDS.format(1, 1)))
    told = [chat.system("You judge."), chat.user("Look at this."), chat.user(WORDS.format(1, 1))]
    assert caller.ask(told).trajectory_id != first.trajectory_id


def test_a_sub_agent_with_its_own_system_prompt_is_a_trajectory_of_its_own(caller, chat) -> None:
    parent = caller.turn(
        chat.opening(), chat.says("I will ask a colleague about the parser, in enough words.")
    )
    child = caller.ask(
        [
            chat.system("You are a reviewer."),
            chat.user("I will ask a colleague about the parser, in enough words."),
        ]
    )
    assert child.trajectory_id != parent.trajectory_id


def test_a_sample_whose_prompt_a_sibling_quoted_is_not_taken_for_its_compaction(caller, chat) -> None:
    task = "Mend the parser so that it no longer reads past the end of the buffer."
    first = caller.turn(chat.opening(task), chat.says(task))
    assert caller.ask(chat.opening(task)).trajectory_id != first.trajectory_id


@pytest.mark.parametrize(
    ("model", "headers"), [("other", {}), ("m", {"authorization": "Bearer another-key"})]
)
def test_other_models_and_other_tenants_do_not_meet(caller, chat, model, headers) -> None:
    first = caller.turn(chat.opening(), chat.says("one"))
    longer = [*chat.opening(), chat.says("one"), chat.user("go on")]
    other = caller.ask(longer, model=model, headers=headers)
    assert other.trajectory_id != first.trajectory_id
    assert other.group_id != first.group_id


def test_an_untagged_request_finds_a_conversation_that_was_tagged(caller, chat) -> None:
    first = caller.turn(chat.opening(), chat.says("one"), headers={"x-session-id": "s1"})
    following = caller.ask([*chat.opening(), chat.says("one"), chat.user("go on")])
    assert (first.trajectory_id, following.trajectory_id, following.source) == ("s1", "s1", "history")
