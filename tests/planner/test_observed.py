"""What the planner keeps of step records, and what it says of them."""

import gc
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
from heddle_contracts.predictions import ANNOUNCED_TENANT, NewTrajectory, StepBatch, TrajectoryOver
from heddle_contracts.steps import Outcome, StepRecord
from heddle_planner.observed import Observed
from heddle_planner.predictor import models
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.features import StepFeatures
from heddle_planner.predictor.observations import Trajectory
from heddle_planner.predictor.online import OnlinePredictor
from heddle_planner.predictor.protocol import Prediction, lognormal
from heddle_planner.running_error import RunningError

Record = Callable[..., StepRecord]


class CountsDown:
    """Says that 1,000 tokens are left less what was generated, and keeps what it was asked."""

    name: ClassVar[str] = "counts-down"

    def __init__(self) -> None:
        self.asked: list[StepFeatures] = []

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        self.asked += moments
        done = np.array([moment.done_tokens for moment in moments], dtype=np.float64)
        return lognormal(np.maximum(1.0, 1_000.0 - done), np.full(len(moments), 0.4))


@pytest.fixture
def model() -> CountsDown:
    return CountsDown()


@pytest.fixture
def observed(model: CountsDown) -> Observed:
    return Observed(model)


def over(trajectory: str = "t") -> TrajectoryOver:
    return TrajectoryOver(tenant="", trajectory_id=trajectory, finished=True, at=0.0)


def test_a_forecast_is_made_after_each_step_from_all_that_was_seen(
    observed: Observed, model: CountsDown, record: Record
) -> None:
    said = [observed.take(StepBatch(steps=(record(step),)))[0] for step in range(3)]
    assert [(one.step, round(one.mean)) for one in said] == [(0, 900), (1, 800), (2, 700)]
    assert [one.sigma for one in said] == [0.4] * 3
    assert [moment.steps for moment in model.asked] == [1, 2, 3]


def test_one_batch_gives_one_forecast_a_trajectory_and_none_for_those_that_are_over(
    observed: Observed, record: Record
) -> None:
    steps = (record(0), record(1), record(0, trajectory="u"), record(0, trajectory="v"))
    said = observed.take(StepBatch(steps=steps, over=(over("v"),)))
    assert {(one.trajectory_id, one.step) for one in said} == {("t", 1), ("u", 0)}


def test_records_seen_before_and_steps_that_failed_change_nothing(observed: Observed, record: Record) -> None:
    observed.take(StepBatch(steps=(record(0), record(1))))
    again = observed.take(StepBatch(steps=(record(1), record(2, outcome=Outcome.ABORTED))))
    assert again == []
    assert observed.steps_seen == 2


def test_a_new_trajectory_is_forecast_before_its_first_step_and_not_forgotten_by_it(
    observed: Observed, model: CountsDown, record: Record
) -> None:
    new = NewTrajectory(tenant="", trajectory_id="t", group_id="g", prompt_tokens=500)
    (said,) = observed.take(StepBatch(new=(new,)))
    assert (said.step, said.mean) == (None, 1_000.0)
    assert observed.take(StepBatch(new=(new,))) == []
    observed.take(StepBatch(steps=(record(0, group_id="g"),)))
    assert model.asked[-1].origin.prompt_tokens == 1_000, "as the worker counted it"
    assert len(observed) == 1


def test_finished_trajectories_become_scripts_and_lessons(model: CountsDown, record: Record) -> None:
    lessons: list[Trajectory] = []
    observed = Observed(model, lessons.append)
    observed.take(StepBatch(steps=tuple(record(step) for step in range(3)), over=(over(),)))
    (script,) = observed.past
    assert script.prompt == 1_000
    assert [turn.output for turn in script.turns] == [100, 100, 100]
    assert [turn.input for turn in script.turns] == [0, 50, 50]
    assert [turn.tool_seconds for turn in script.turns] == [5.0, 5.0, 0.0]
    assert len(observed) == 0
    assert lessons == [], "forecasts do not wait for lessons"
    observed.teach()
    (lesson,) = lessons
    assert (lesson.output_tokens, lesson.finished) == (300, True)
    observed.take(StepBatch(steps=(record(0, trajectory="u"),), over=(over("u"),)))
    observed.take(StepBatch())
    assert [one.origin.trajectory_id for one in lessons] == ["t", "u"], "nor does a lesson wait for ever"


def test_a_finished_sibling_is_seen_by_the_others_of_its_prompt(
    observed: Observed, model: CountsDown, record: Record
) -> None:
    first = record(0, trajectory="a", group_id="g")
    observed.take(StepBatch(steps=(first,), over=(over("a"),)))
    observed.take(StepBatch(steps=(record(0, trajectory="b", group_id="g"),)))
    assert [tokens for tokens, _ in model.asked[-1].siblings.finished] == [100]
    observed.take(StepBatch(steps=(record(0, trajectory="c"),)))
    assert len(model.asked[-1].siblings) == 0


def test_a_lesson_says_which_siblings_were_known_when_its_forecasts_were_made(
    model: CountsDown, record: Record
) -> None:
    lessons: list[Trajectory] = []
    observed = Observed(model, lessons.append)
    group = {"group_id": "g"}
    new = NewTrajectory(tenant="", trajectory_id="t", group_id="g", prompt_tokens=500)
    observed.take(StepBatch(new=(new,)))
    for step in range(4):
        sibling = record(0, trajectory=f"s{step}", output=100 + step, **group)
        observed.take(StepBatch(steps=(sibling,), over=(over(f"s{step}"),)))
        observed.take(StepBatch(steps=(record(step, **group),)))
    asked = [moment for moment in model.asked if moment.origin.trajectory_id == "t"]
    observed.take(StepBatch(over=(over(),)))
    observed.teach()
    learned = make_examples(lessons[-1:], ["g"])
    assert [len(one.features.siblings) for one in learned] == [0, 1, 2, 3]
    for then, now in zip(asked, learned, strict=False):
        assert then.siblings.finished == now.features.siblings.finished
        assert then.steps == now.features.steps


def test_what_is_under_way_is_told_as_far_as_it_has_come(observed: Observed, record: Record) -> None:
    observed.take(StepBatch(steps=(record(0), record(1))))
    observed.take(StepBatch(new=(NewTrajectory(tenant="", trajectory_id="u"),)))
    told = {one.origin.trajectory_id: one for one in observed.unfinished()}
    assert {name: (len(one.steps), one.finished) for name, one in told.items()} == {
        "t": (2, False),
        "u": (0, False),
    }
    assert (told["t"].started_at, told["u"].started_at) == (100.0, 115.0), "when the newest step ended"


QUIET_S = 60.0


def test_what_never_ends_a_step_is_forgotten(model: CountsDown) -> None:
    now = 0.0
    observed = Observed(model, clock=lambda: now)
    news = [NewTrajectory(tenant="", trajectory_id=name) for name in ("held", "gone")]
    observed.take(StepBatch(new=tuple(news)))
    now = QUIET_S
    observed.rest_but({("", "held")}, QUIET_S)
    assert [one.origin.trajectory_id for one in observed.unfinished()] == ["held"]
    assert observed.finished == 0


def test_what_is_quiet_and_not_active_counts_as_over_until_it_comes_back(
    model: CountsDown, record: Record
) -> None:
    now = 0.0
    lessons: list[Trajectory] = []
    observed = Observed(model, lessons.append, clock=lambda: now)
    observed.take(StepBatch(steps=(record(0, group_id="g"), record(0, trajectory="u"))))
    now = QUIET_S - 1
    observed.rest_but({("", "u")}, QUIET_S)
    assert (len(observed), observed.finished) == (2, 0), "it may be in a tool gap"
    now = QUIET_S
    observed.rest_but({("", "u")}, QUIET_S)
    assert (len(observed), observed.finished) == (1, 1)
    assert observed.take(StepBatch(steps=(record(0, group_id="g"),))) == [], "sent again, that is no return"
    assert len(observed) == 1
    (said,) = observed.take(StepBatch(steps=(record(1, group_id="g"),)))
    assert said.mean == 800.0, "it goes on where it was"
    assert (len(observed), observed.finished) == (2, 0)
    assert len(model.asked[-1].siblings) == 0, "it is no sibling of itself"
    observed.take(StepBatch(over=(over(),)))
    assert (len(observed), observed.finished) == (1, 1), "known once, as long as it was"
    observed.take(StepBatch(steps=(record(0, trajectory="v", group_id="g"),)))
    assert [tokens for tokens, _ in model.asked[-1].siblings.finished] == [200]


@pytest.mark.parametrize("announced", [False, True])
def test_one_that_comes_anew_while_its_old_life_rests_is_another(
    model: CountsDown, record: Record, announced: bool
) -> None:
    now = 0.0
    lessons: list[Trajectory] = []
    observed = Observed(model, lessons.append, clock=lambda: now)
    observed.take(StepBatch(steps=(record(0), record(1))))
    now = QUIET_S
    observed.rest_but(set(), QUIET_S)
    new = NewTrajectory(tenant="", trajectory_id="t", prompt_tokens=500)
    if announced:
        observed.take(StepBatch(new=(new,)))
    for step in range(3):
        later = record(step, output=70, arrived_at=500.0 + step, ended_at=500.5 + step)
        (said,) = observed.take(StepBatch(steps=(later,)))
        assert said.mean == 1_000.0 - 70 * (step + 1), "nothing of the old life is counted"
    assert observed.take(StepBatch(steps=(record(1),))) == [], "the old life's records are seen"
    assert observed.take(StepBatch(over=(over(),))) == []
    observed.teach()
    assert (len(observed), observed.finished) == (0, 2)
    assert [one.output_tokens for one in lessons] == [200, 210]


def test_where_all_gaps_are_short_less_quiet_tells_that_one_is_over(
    model: CountsDown, record: Record
) -> None:
    now = 0.0
    observed = Observed(model, clock=lambda: now)
    gaps = [None] + [1.0] * 63 + [4.0]
    for step, gap in enumerate(gaps):
        observed.take(StepBatch(steps=(record(step, gap_before_s=gap),)))
    now = 7.0
    observed.rest_but(set(), QUIET_S)
    assert observed.finished == 0, "one of them took 4 s, and the next may take longer"
    now = 8.0
    observed.rest_but(set(), QUIET_S)
    assert observed.finished == 1


def test_what_is_learned_of_one_that_came_back_takes_the_place_of_what_it_was(record: Record) -> None:
    now = 0.0
    learner = OnlinePredictor(models.load().predictor)
    observed = Observed(learner, learner.learn, clock=lambda: now)
    observed.take(StepBatch(steps=(record(0),)))
    now = QUIET_S
    observed.rest_but(set(), QUIET_S)
    observed.teach()
    assert learner.state().window == 1
    observed.take(StepBatch(steps=(record(1),), over=(over(),)))
    observed.teach()
    assert learner.state().window == 1
    observed.take(StepBatch(steps=(record(0, trajectory="u"),), over=(over("u"),)))
    observed.teach()
    assert learner.state().window == 2


@pytest.mark.parametrize("rested", [False, True])
def test_a_batch_that_is_sent_again_changes_nothing_once_its_trajectory_is_over(
    model: CountsDown, record: Record, rested: bool
) -> None:
    now = 0.0
    lessons: list[Trajectory] = []
    observed = Observed(model, lessons.append, clock=lambda: now)
    observed.take(StepBatch(steps=(record(0), record(1))))
    if rested:
        now = QUIET_S
        observed.rest_but(set(), QUIET_S)
        last = StepBatch(over=(over(),), steps=(record(1),))
    else:
        last = StepBatch(steps=(record(2),), over=(over(),))
    assert observed.take(last) == []
    before = observed.steps_seen
    assert observed.take(last) == []
    observed.teach()
    assert (observed.steps_seen, observed.finished, len(observed)) == (before, 1, 0)
    assert [one.output_tokens for one in lessons] == [200 if rested else 300]
    another = record(0, arrived_at=500.0, ended_at=505.0)
    assert len(observed.take(StepBatch(steps=(another,)))) == 1, "another one of the same name"


def test_an_announced_trajectory_is_forecast_with_its_siblings_and_not_kept(
    observed: Observed, model: CountsDown, record: Record
) -> None:
    news = [
        NewTrajectory(tenant=ANNOUNCED_TENANT, trajectory_id=name, group_id=group, prompt_tokens=500)
        for name, group in (("x", "swe-47"), ("y", "new"))
    ]
    assert [one.mean for one in observed.take(StepBatch(new=tuple(news)))] == [1_000.0, 1_000.0]
    of_agents = {"tenant": "beef", "group_id": "swe-47"}
    ended = [TrajectoryOver(tenant="beef", trajectory_id="a", finished=True, at=0.0)]
    observed.take(StepBatch(steps=(record(0, trajectory="a", **of_agents),), over=tuple(ended)))
    said = observed.take(StepBatch(new=tuple(news)))
    assert [(one.tenant, one.trajectory_id) for one in said] == [(ANNOUNCED_TENANT, name) for name in "xy"]
    known, unknown = model.asked[-2:]
    assert [tokens for tokens, _ in known.siblings.finished] == [100]
    assert len(unknown.siblings) == 0
    assert [one.origin.domain for one in (known, unknown)] == ["beef", "beef"]
    assert len(observed) == 0


def test_gaps_are_foretold_by_the_tool_that_was_called(observed: Observed, record: Record) -> None:
    tools = ["slow", "fast"] * 20
    gaps = [None] + [8.0 if tool == "slow" else 0.1 for tool in tools]
    said = {}
    for step, (tool, gap) in enumerate(zip(tools, gaps, strict=False)):
        (one,) = observed.take(StepBatch(steps=(record(step, tool_names=(tool,), gap_before_s=gap),)))
        said[tool] = one.gap_s
    assert said["slow"] is not None
    assert said["fast"] is not None
    assert said["slow"] > 3.0 > 1.0 > said["fast"]


def test_trajectories_of_one_name_and_two_tenants_have_gaps_of_their_own(
    observed: Observed, record: Record
) -> None:
    said = {}
    for step in range(20):
        for tenant, gap in (("quick", 0.1), ("slow", 30.0)):
            one = record(step, tenant=tenant, gap_before_s=gap if step else None)
            said[tenant] = observed.take(StepBatch(steps=(one,)))[0].gap_s
    assert said["slow"] is not None
    assert said["quick"] is not None
    assert said["slow"] > 20 * said["quick"]


def test_the_error_is_measured_on_trajectories_that_are_over(observed: Observed, record: Record) -> None:
    assert observed.error.sigma is None
    for number in range(10):
        name = f"t{number}"
        steps = tuple(record(step, trajectory=name) for step in range(10))
        for step in steps:
            observed.take(StepBatch(steps=(step,)))
        observed.take(StepBatch(over=(over(name),)))
    assert observed.error.sigma == pytest.approx(0.0, abs=1e-6), "1,000 tokens each, as foretold"


@pytest.mark.parametrize("steps", [1, 4])
def test_what_was_said_before_the_first_step_is_part_of_the_error(
    model: CountsDown, record: Record, steps: int
) -> None:
    observed = Observed(model)
    for number in range(8):
        name = f"t{number}"
        new = NewTrajectory(tenant="", trajectory_id=name, prompt_tokens=500)
        observed.take(StepBatch(new=(new,)))
        for step in range(steps):
            observed.take(StepBatch(steps=(record(step, trajectory=name),)))
        observed.take(StepBatch(over=(over(name),)))
    left = [100 * (steps - done) for done in range(steps)]
    squares = [math.log((1_000 - 100 * done) / left[done]) ** 2 for done in range(steps)]
    assert observed.error.count == 8 * steps
    assert observed.error.sigma == pytest.approx(math.sqrt(sum(squares) / steps))


def test_an_error_that_jumps_is_noticed_once() -> None:
    error = RunningError()
    for _ in range(200):
        error.add(100.0, 120.0)
    assert not error.has_jumped
    assert error.sigma == pytest.approx(math.log(1.2))
    for _ in range(40):
        error.add(100.0, 1_000.0)
    assert error.has_jumped
    error.settle()
    assert not error.has_jumped


def test_running_trajectories_stand_in_while_few_have_finished(observed: Observed, record: Record) -> None:
    observed.take(StepBatch(steps=(record(0), record(1), record(0, trajectory="u"))))
    assert observed.finished == 0
    assert sorted(len(script.turns) for script in observed.past) == [1, 2]


def test_steps_forecasts_and_endings_leave_nothing_to_the_collector(record: Record) -> None:
    learner = OnlinePredictor(models.load().predictor)
    observed = Observed(learner, learner.learn)

    def live(name: str) -> None:
        for step in range(4):
            observed.take(StepBatch(steps=(record(step, trajectory=name, group_id="g"),)))
        observed.take(StepBatch(over=(over(name),)))
        observed.teach()

    live("first")
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            live(f"t{number}")
        assert gc.collect() == 0
    finally:
        gc.enable()
