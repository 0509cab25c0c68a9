"""Features: the same for training and serving, blind to the future, robust to what is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heddle_contracts.steps import Outcome, StepRecord
from heddle_core import WORD_BUCKETS, Siblings, weigh
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.features import FEATURES, Progress
from heddle_planner.predictor.observations import EndedStep, Origin, origin_of, step_of, tokens_left
from heddle_planner.predictor.records import RecordedSet, load_set
from heddle_planner.predictor.siblings import FinishedSiblings, Sibling

Write = Callable[..., Path]
Line = Callable[..., dict[str, Any]]


def value(progress: Progress, name: str) -> float:
    return float(progress.features().numbers[FEATURES.index(name)])


def test_there_is_a_number_for_every_name(agents: RecordedSet) -> None:
    progress = Progress(agents.trajectories[0].origin)
    assert progress.features().numbers.shape == (len(FEATURES),)
    progress.observe(agents.trajectories[0].steps[0])
    assert progress.features(Siblings([Sibling(10, 2)])).numbers.shape == (len(FEATURES),)
    assert len(set(FEATURES)) == len(FEATURES)


def test_the_future_changes_no_moment_before_it(written: Write, line: Line) -> None:
    one, other = line("t", 0, [10, 20, 30, 40]), line("t", 0, [10, 20, 9_999, 1])
    other["steps"][1] |= {"tool_seconds": 500.0, "tool_error": True, "obs_text": "what the tool says later"}
    first, second = (
        make_examples(read.trajectories, read.tasks)
        for read in (load_set(written("a.jsonl", [one])), load_set(written("b.jsonl", [other])))
    )
    for step in (0, 1, 2):
        np.testing.assert_array_equal(first[step].features.numbers, second[step].features.numbers)
    assert first[3].features.numbers.tolist() != second[3].features.numbers.tolist()


def test_only_siblings_that_have_finished_are_seen(written: Write, line: Line) -> None:
    def moments(*outputs: list[int], timed: bool) -> list[tuple[int, ...]]:
        lines = [line("t", sample, tokens) for sample, tokens in enumerate(outputs)]
        for one in lines:
            for step in one["steps"]:
                step["llm_seconds"] = step["output_tokens"] / 10 if timed else None
        read = load_set(written("a.jsonl", lines))
        return [
            tuple(tokens for tokens, _ in example.features.siblings.finished)
            for example in make_examples(read.trajectories, read.tasks)
            if example.trajectory == 0
        ]

    # By steps: the sibling of two steps is over when two steps are done, the one of nine never.
    assert moments([5] * 4, [7] * 2, [1] * 9, timed=False) == [(), (), (14,), (14,)]
    # By time: 0.5 s a step and 1.5 s a gap; the sibling of one step of 250 tokens takes 25 s.
    assert moments([5] * 4, [250], timed=True) == [(), (), (), ()]
    assert moments([5] * 4, [20], timed=True) == [(), (), (20,), (20,)]


def test_a_sibling_that_was_cut_off_never_counts_as_finished(written: Write, line: Line) -> None:
    lines = [line("t", 0, [5] * 4), line("t", 1, [7], finished=False)]
    read = load_set(written("a.jsonl", lines))
    assert all(not example.features.siblings for example in make_examples(read.trajectories, read.tasks))


def test_a_gateways_records_give_the_features_of_the_recorded_format(written: Write, line: Line) -> None:
    one = line("t", 0, [10, 20, 30])
    for step in one["steps"]:
        step["tool_error"] = None
    recorded = load_set(written("a.jsonl", [one])).trajectories[0]
    context, at, progress = 0, 100.0, None
    for index, step in enumerate(recorded.steps):
        prompt = 500 if index == 0 else context + step.input_tokens
        at += step.gap_before_s or 0.0
        record = StepRecord(
            trajectory_id="t/0",
            tenant="k",
            source="header",
            dialect="chat",
            model="m",
            step=index,
            outcome=Outcome.DONE,
            tool_names=step.tools,
            prompt_tokens=prompt,
            output_tokens=step.output_tokens,
            arrived_at=at - 5,
            dispatched_at=at,
            ended_at=at + (step.seconds or 0.0),
            gap_before_s=step.gap_before_s,
        )
        progress = progress or Progress(origin_of(record))
        progress.observe(step_of(record, context))
        context, at = prompt + step.output_tokens, record.ended_at
    assert progress is not None
    offline = Progress(recorded.origin)
    for step in recorded.steps:
        offline.observe(step)
    np.testing.assert_allclose(progress.features().numbers, offline.features().numbers)


def test_a_shrunk_prompt_is_a_compaction() -> None:
    progress = Progress(Origin("t", "p", prompt_tokens=100))
    progress.observe(EndedStep(50))
    progress.observe(EndedStep(50, input_tokens=1_000, compacted=False))
    before = value(progress, "log_context")
    progress.observe(EndedStep(50, compacted=True))
    assert value(progress, "compactions") == 1
    assert value(progress, "log_context") < before


def test_what_is_unknown_is_not_a_number_and_absurd_values_stay_finite() -> None:
    progress = Progress(Origin("t", ""))
    progress.observe(EndedStep(0))
    numbers = progress.features().numbers
    assert np.isnan(numbers[FEATURES.index("error_share")])
    assert np.isnan(numbers[FEATURES.index("log_last_gap")])
    for _ in range(3):
        progress.observe(
            EndedStep(10**8, input_tokens=10**8, gap_before_s=1e9, seconds=1e9, error_before=True)
        )
    assert not np.isinf(progress.features(Siblings([Sibling(0, 0)])).numbers).any()


def test_memory_does_not_grow_with_steps() -> None:
    progress = Progress(Origin("t", ""))
    for number in range(500):
        progress.observe(EndedStep(1, tools=(f"tool-{number}",), text="word " * 5_000))
    features = progress.features()
    assert features.text is not None
    assert len(features.text) < 10_000
    assert value(progress, "tools") <= 64


def test_siblings_are_bounded_and_nameless_prompts_have_none() -> None:
    finished = FinishedSiblings()
    finished.add("", Sibling(1, 1))
    for tokens in range(100):
        finished.add("p", Sibling(tokens, 1))
    assert len(finished.of("")) == 0
    assert len(finished) == 1
    assert finished.of("p").finished == [(tokens, 1) for tokens in range(36, 100)]
    finished.add("p", Sibling(7, 3))
    assert finished.of("p").finished[-1] == (7, 3)


def test_tokens_left_are_those_of_the_steps_to_come() -> None:
    assert tokens_left([EndedStep(3), EndedStep(4), EndedStep(5)]) == [12, 9, 5]


@pytest.mark.parametrize("text", ["", "?" * 50_000, "- item\n" * 9_000, "error " * 20_000, "{" * 50_000])
def test_cues_take_any_text(text: str) -> None:
    progress = Progress(Origin("t", "", prompt_text=text))
    for _ in range(20):
        progress.observe(EndedStep(1, text=text, observation=text))
    # A pattern that backtracks would not come back within the run's limit.
    assert not np.isinf(progress.features().numbers).any()


def test_half_a_surrogate_and_counts_without_bound_are_taken() -> None:
    progress = Progress(Origin("t", "", prompt_tokens=10**30, prompt_text="\ud800"))
    progress.observe(EndedStep(10**30, input_tokens=-(10**30), text="\udfff done", tools=("\ud800",)))
    progress.observe(EndedStep(10**30, text=""))
    assert not np.isinf(progress.features(Siblings([Sibling(10**30, 10**30)])).numbers).any()
    with pytest.raises(TypeError):
        progress.observe(EndedStep("many"))  # type: ignore[arg-type]


def test_weights_that_are_not_one_a_bucket_are_refused() -> None:
    with pytest.raises(ValueError, match=f"weights: must be {WORD_BUCKETS} numbers, not 3"):
        weigh([None], np.zeros(3).data)
    assert weigh([None], np.ones(WORD_BUCKETS).data) == [0.0]


def test_a_moment_stays_as_it_was() -> None:
    progress = Progress(Origin("t", "", prompt_text="what to do"))
    progress.observe(EndedStep(5, text="one thing", observation="seen", tools=("grep",)))
    before = progress.features()
    kept = (before.numbers.tolist(), before.words, before.said, before.text)
    assert before.words is not None
    assert before.said is not None
    bags = before.words.buckets(), before.said.buckets()
    progress.observe(EndedStep(6, text="other things", tools=("ls",)))
    np.testing.assert_array_equal(before.numbers, kept[0])
    assert (before.words.buckets(), before.said.buckets()) == bags
    assert before.text == "seen\none thing"
    assert progress.features().text == "other things"


def test_tools_called_are_part_of_what_was_said_without_texts() -> None:
    progress = Progress(Origin(trajectory_id="t", prompt="p"))
    assert progress.features().said is None
    progress.observe(EndedStep(output_tokens=5, tools=("book_flight",)))
    after_one = progress.features()
    assert after_one.words is None
    progress.observe(EndedStep(output_tokens=5, tools=("cancel_flight",)))
    after_two = progress.features()
    assert after_one.said is not None
    assert after_two.said is not None
    assert (len(after_one.said), len(after_two.said)) == (1, 2)
