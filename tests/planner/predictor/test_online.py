"""Learning while serving: refits in the background, swapped when better; nothing breaks the caller."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pytest
from heddle_core import Siblings
from heddle_planner.predictor import online
from heddle_planner.predictor.boosting import Boosting
from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.history import History
from heddle_planner.predictor.observations import EndedStep, Origin, Trajectory
from heddle_planner.predictor.online import OnlinePredictor
from heddle_planner.predictor.protocol import Example, Prediction, PredictorError, lognormal
from heddle_planner.predictor.records import RecordedSet

WAIT_S = 240.0


class Scripted:
    """A predictor that says what it is told to; ``gate`` holds its fit back."""

    name: ClassVar[str] = "scripted"

    def __init__(
        self, mean: float = 100.0, *, gate: threading.Event | None = None, fails: bool = False
    ) -> None:
        self.mean, self.gate, self.fails = mean, gate, fails
        self.fitted_to = 0

    def fit(self, examples: Sequence[Example]) -> None:
        if self.gate is not None:
            assert self.gate.wait(WAIT_S)
        if self.fails:
            raise PredictorError("too few")
        self.fitted_to = len({example.trajectory for example in examples})

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        if self.mean < 0:
            raise RuntimeError("broken")
        return lognormal(np.full(len(moments), self.mean), np.full(len(moments), 0.3))

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path) -> Self:
        raise NotImplementedError


def a_trajectory(number: int, tokens: int) -> Trajectory:
    return Trajectory(Origin(f"t{number}", f"p{number}"), tuple(EndedStep(tokens // 4) for _ in range(4)))


def a_moment() -> StepFeatures:
    return Progress(Origin("t", "")).features()


def test_a_refit_waits_for_enough_then_takes_the_place_of_a_worse_model() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(4_000.0))
        return made[-1]

    learner = OnlinePredictor(Scripted(10.0), make)
    for number in range(online.FIRST_REFIT - 1):
        learner.learn(a_trajectory(number, 4_000))
    assert not made
    learner.learn(a_trajectory(999, 4_000))
    assert learner.wait(WAIT_S)
    state = learner.state()
    assert (state.refits, state.refused, state.failures) == (1, 0, 0)
    assert learner.predict([a_moment()]).mean[0] == pytest.approx(4_000)
    # Judged without the newest, then fitted to all.
    assert [one.fitted_to for one in made] == [online.FIRST_REFIT - 13, online.FIRST_REFIT]
    assert learner.back()
    assert learner.predict([a_moment()]).mean[0] == pytest.approx(10)
    assert not learner.back()


def test_a_refit_that_is_worse_or_fails_changes_nothing() -> None:
    for kind in (lambda: Scripted(10.0), lambda: Scripted(fails=True)):
        learner = OnlinePredictor(Scripted(4_000.0), kind)
        for number in range(online.FIRST_REFIT):
            learner.learn(a_trajectory(number, 4_000))
        assert learner.wait(WAIT_S)
        assert learner.predict([a_moment()]).mean[0] == pytest.approx(4_000)
        assert learner.state().refits == 0
        assert learner.state().refused + learner.state().failures == 1


def test_predictions_go_on_during_a_refit_and_there_is_one_at_a_time() -> None:
    gate = threading.Event()
    made = 0

    def make() -> Scripted:
        nonlocal made
        made += 1
        return Scripted(4_000.0, gate=gate)

    learner = OnlinePredictor(Scripted(10.0), make)
    for number in range(4 * online.FIRST_REFIT):
        learner.learn(a_trajectory(number, 4_000))
    assert learner.state().refitting
    assert learner.predict([a_moment()]).mean[0] == pytest.approx(10)
    assert made == 1
    gate.set()
    assert learner.close(WAIT_S)
    assert learner.predict([a_moment()]).mean[0] == pytest.approx(4_000)
    learner.start_refit()
    assert not learner.state().refitting


@pytest.mark.parametrize("mean", [-1.0, np.nan, np.inf])
def test_a_model_that_fails_or_talks_nonsense_is_answered_by_history(mean: float) -> None:
    learner = OnlinePredictor(Scripted(mean), Scripted)
    said = learner.predict([a_moment()] * 3)
    assert len(said) == 3
    assert np.isfinite(said.mean).all()
    assert learner.state().failures == 1


def test_a_jump_of_the_lengths_is_drift() -> None:
    learner = OnlinePredictor(Scripted(1_000.0), lambda: Scripted(fails=True))
    for number in range(200):
        learner.learn(a_trajectory(number, 800 + 400 * (number % 2)))
    assert not learner.state().drifted
    for number in range(200, 240):
        learner.learn(a_trajectory(number, 9_000))
    assert learner.state().drifted
    bias = learner.state().bias
    assert bias is not None
    assert bias > 1.5
    assert learner.close(WAIT_S)


def test_the_window_is_bounded_and_long_trajectories_are_thinned() -> None:
    learner = OnlinePredictor(Scripted(), lambda: Scripted(fails=True))
    for _ in range(online.WINDOW + 50):
        learner.learn(Trajectory(Origin("t", ""), (EndedStep(5),)))
    learner.learn(Trajectory(Origin("t", ""), tuple(EndedStep(5) for _ in range(500))))
    learner.learn(Trajectory(Origin("t", ""), ()))
    assert learner.state().window == online.WINDOW
    longest = max(len(examples) for _, examples in learner._window)
    assert 10 < longest <= online.MOST_MOMENTS
    assert learner.close(WAIT_S)


def test_a_refit_is_fitted_to_and_judged_by_moments_with_the_siblings_that_were_known() -> None:
    fitted: list[list[int]] = []
    judged: list[list[int]] = []

    class Watched(Scripted):
        def fit(self, examples: Sequence[Example]) -> None:
            fitted.append([len(example.features.siblings) for example in examples])

        def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
            judged.append([len(moment.siblings) for moment in moments])
            return super().predict(moments)

    learner = OnlinePredictor(Scripted(10.0), lambda: Watched(4_000.0))
    for prompt in range(8):
        for sample in range(8):
            origin = Origin(f"t{prompt}-{sample}", f"p{prompt}")
            siblings = tuple(Siblings([(4_000, 1)] * (sample + step)) for step in range(2))
            learner.learn(Trajectory(origin, (EndedStep(2_000), EndedStep(2_000)), siblings=siblings))
    assert learner.wait(WAIT_S)
    known = [sample + step for sample in range(8) for step in range(2)]
    assert fitted == [known * 6, known * 8]
    assert judged == [known * 2]


def test_nothing_is_fitted_to_the_first_that_are_over_of_a_rollout() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(4_000.0))
        return made[-1]

    learner = OnlinePredictor(Scripted(10.0), make)
    going = {
        number: replace(a_trajectory(number, 4_000), started_at=float(number % 7), finished=False)
        for number in range(200)
    }
    learner.running = lambda: list(going.values())
    while len(going) > 20:
        _, one = going.popitem()
        learner.learn(replace(one, finished=True))
        assert learner.wait(WAIT_S)
    assert not made, "a tenth still runs, the longest"
    while len(going) > 2:
        _, one = going.popitem()
        learner.learn(replace(one, finished=True))
        assert learner.wait(WAIT_S)
    learner.start_refit()
    assert learner.wait(WAIT_S)
    assert learner.state().refits == 1
    assert max(one.fitted_to for one in made) == 200, "what still runs counts, as longer than what was seen"


def test_a_late_moment_stands_for_all_that_were_not_kept_before_the_next() -> None:
    long = Trajectory(Origin("t", "p"), tuple(EndedStep(5) for _ in range(1_000)))
    kept = online._moments(long)
    assert len(kept) <= online.MOST_MOMENTS
    said = Scripted(100.0).predict([a_moment()]).quantiles[0, 2]
    every = [abs(math.log1p(said) - math.log1p(5.0 * left)) for left in range(1, 1_001)]
    assert online._error(Scripted(100.0), [(long, kept)]) == pytest.approx(np.mean(every), rel=0.03)
    alike = np.mean([abs(math.log1p(said) - math.log1p(one.remaining)) for one in kept])
    assert alike > 1.1 * np.mean(every)


def test_what_began_before_those_that_run_is_whole() -> None:
    def begun(*starts: float | None) -> list[Trajectory]:
        return [replace(a_trajectory(0, 4), started_at=start) for start in starts]

    assert online.whole_until(begun(*range(50)), begun(*range(50, 90))) == 49.0
    assert online.whole_until(begun(1.0, 1.0, 2.0), begun(1.0)) == -math.inf
    assert online.whole_until(begun(None, None, 2.0), begun(1.5)) == -math.inf
    assert online.whole_until(begun(1.0, 2.0), []) == 2.0
    assert online.whole_until(begun(*range(99)), begun(150.0)) == 150.0, "one in a hundred"


def test_a_refit_is_judged_by_whole_prompts_the_newest() -> None:
    fitted: list[set[str]] = []

    class Watched(Scripted):
        def fit(self, examples: Sequence[Example]) -> None:
            fitted.append({example.task for example in examples})

    learner = OnlinePredictor(Scripted(10.0), lambda: Watched(4_000.0))
    for sample in range(8):
        for prompt in range(8):
            origin = Origin(f"t{prompt}-{sample}", f"p{prompt}")
            steps = (EndedStep(4_000),)
            learner.learn(Trajectory(origin, steps, started_at=100.0 * (8 - prompt) + sample))
    assert learner.wait(WAIT_S)
    everyone = {f"p{prompt}" for prompt in range(8)}
    assert fitted == [everyone - {"p0", "p1"}, everyone]


def test_it_learns_a_law_from_what_finishes(agents: RecordedSet, strangers: list[Example]) -> None:
    learner = OnlinePredictor(History(), Boosting)
    for trajectory in agents.trajectories:
        learner.learn(trajectory)
    assert learner.wait(WAIT_S)
    assert learner.state().refits == 1
    assert learner.state().model == "boosting"
    second = [example for example in strangers if example.features.steps == 2]
    said = learner.predict([example.features for example in second])
    assert np.corrcoef(np.log(said.mean), np.log([e.remaining for e in second]))[0, 1] > 0.5
