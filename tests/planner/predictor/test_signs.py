"""Signs that hold for every agent: found within agents, kept where agents agree, silent elsewhere."""

import numpy as np
import pytest
from heddle_planner.predictor.boosting import Boosting
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.history import History
from heddle_planner.predictor.observations import EndedStep, Origin, Trajectory
from heddle_planner.predictor.protocol import Example, Floats, PredictorError
from heddle_planner.predictor.scores import concordance
from heddle_planner.predictor.signs import LEAST_TRAJECTORIES, SIGNS, UNDER_WAY, Signs
from numpy.typing import NDArray

STEPS = 10
Numbered = NDArray[np.intp]


def moment(asked: int, agent: str = "a", steps: int = STEPS) -> StepFeatures:
    """After ``steps`` steps, the first ``asked`` of which asked a person."""
    progress = Progress(Origin(f"{agent}/{asked}", "", domain=agent))
    for step in range(steps):
        progress.observe(EndedStep(100, tools=("ask_user" if step < asked else "bash",)))
    return progress.features()


def seen(
    laws: dict[str, tuple[float, float]], count: int = 60
) -> tuple[list[StepFeatures], Floats, Numbered]:
    """Moments by agent: (log of how far history is off, the same for each step that asked)."""
    draw = np.random.default_rng(0)
    moments, off, agents = [], [], []
    for number, (name, (level, slope)) in enumerate(laws.items()):
        for _ in range(count):
            asked = int(draw.integers(0, STEPS))
            moments.append(moment(asked, name))
            off.append(level + slope * asked + draw.normal(0, 0.2))
            agents.append(number)
    return moments, np.array(off), np.array(agents, dtype=np.intp)


def fitted(laws: dict[str, tuple[float, float]], count: int = 60) -> Signs:
    moments, off, agents = seen(laws, count)
    return Signs.fit(moments, off, agents, np.arange(len(moments), dtype=np.intp))


def tilt(signs: Signs) -> float:
    """What asking at half of the steps adds to what is said."""
    never, half = signs.predict([moment(0), moment(STEPS // 2)])
    return float(half - never)


def test_what_all_agents_show_is_said_of_a_stranger() -> None:
    signs = fitted({"a": (0.0, -0.2), "b": (3.0, -0.2), "c": (-1.0, -0.1)})
    assert tilt(signs) < -0.1
    said = signs.predict([moment(asked) for asked in range(STEPS)])
    assert (np.diff(said) <= 0).all()


def test_what_agents_disagree_about_is_not_said() -> None:
    agreed = fitted({"a": (0.0, -0.2), "b": (0.0, -0.2)})
    disputed = fitted({"a": (0.0, -0.2), "b": (0.0, 0.2)})
    assert abs(tilt(disputed)) < 0.15 * abs(tilt(agreed))


def test_lengths_of_agents_do_not_pass_for_a_sign() -> None:
    """One agent asks at each step and is short, one never asks and is long: that tells nothing within one."""
    draw = np.random.default_rng(1)
    moments = [moment(STEPS, "talker")] * 40 + [moment(0, "worker")] * 40
    off = np.concatenate([draw.normal(-2, 0.2, 40), draw.normal(2, 0.2, 40)])
    signs = Signs.fit(moments, off, np.repeat([0, 1], 40).astype(np.intp), np.arange(80, dtype=np.intp))
    assert abs(tilt(signs)) < 0.01


def test_it_says_little_early_and_nothing_before_the_first_step() -> None:
    signs = fitted({"a": (0.0, -0.2), "b": (0.0, -0.2)})
    assert signs.predict([moment(0, steps=0)]) == [0.0]
    early = np.ptp(signs.predict([moment(0, steps=1), moment(1, steps=1)]))
    late = np.ptp(signs.predict([moment(0), moment(STEPS)]))
    assert 0 < early < 0.5 * late


def test_edits_and_words_count_once_the_work_is_under_way() -> None:
    signs = Signs(slopes=np.ones(len(SIGNS)))
    edits = [Progress(Origin("e", "")) for _ in range(2)]
    for progress, count in zip(edits, (UNDER_WAY - 1, UNDER_WAY), strict=True):
        for _ in range(count):
            progress.observe(EndedStep(100, tools=("edit_file",)))
    early, late = signs.predict([progress.features() for progress in edits])
    assert early == 0.0
    assert late > 0.3


def test_it_is_bounded_and_finite_whatever_the_numbers() -> None:
    signs = fitted({"a": (0.0, -2.0), "b": (0.0, -2.0)})
    spoiled = [moment(asked) for asked in range(4)]
    for features, value in zip(spoiled, (np.nan, 1e300, -1e300, np.inf), strict=True):
        features.numbers[:] = value
    said = signs.predict([*spoiled, moment(STEPS), moment(0)])
    assert np.isfinite(said).all()
    assert np.abs(said).max() <= 0.75
    assert said[0] == 0.0
    assert signs.predict([]).shape == (0,)


def test_too_few_trajectories_of_an_agent_tell_nothing() -> None:
    signs = fitted({"a": (0.0, -0.2), "b": (0.0, -0.2)}, count=LEAST_TRAJECTORIES - 1)
    assert not signs.slopes.any()
    assert not signs.predict([moment(3)]).any()


def test_it_comes_back_as_it_was_saved_and_other_signs_are_refused() -> None:
    signs = fitted({"a": (0.0, -0.2), "b": (0.0, -0.2)})
    body = signs.as_json()
    np.testing.assert_array_equal(Signs.from_json(body).predict([moment(3)]), signs.predict([moment(3)]))
    with pytest.raises(PredictorError, match="names: are not those of this version; train again"):
        Signs.from_json({**body, "names": list(SIGNS[1:])})
    for values in ([0.0], [np.nan] * len(SIGNS)):
        with pytest.raises(PredictorError, match=f"must be {len(SIGNS)} finite numbers"):
            Signs.from_json({**body, "slopes": values})


def trajectories(agent: str, count: int, size: float, seed: int) -> list[Trajectory]:
    """Those that edit early have little left. ``size``: usual tokens of a step, which agents differ in."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        hurry = number % 2
        steps = [
            EndedStep(
                max(1, round(size * 2.718 ** draw.normal(0, 0.3))),
                tools=("edit_file" if index >= (2 if hurry else 20) else "read_file",),
            )
            for index in range(12 if hurry else 30)
        ]
        found.append(Trajectory(Origin(f"{agent}/{number}", f"{agent}/{number}", agent, agent), tuple(steps)))
    return found


def test_a_stranger_is_ordered_better_than_by_history() -> None:
    known = trajectories("a", 40, 50.0, seed=0) + trajectories("b", 40, 400.0, seed=1)
    examples = make_examples(known, [one.origin.prompt for one in known])
    strangers = trajectories("c", 60, 150.0, seed=2)
    asked: list[Example] = [
        example
        for example in make_examples(strangers, [one.origin.prompt for one in strangers])
        if example.features.steps == 10
    ]
    moments, truth = [example.features for example in asked], np.array([e.remaining for e in asked])
    boosting, history = Boosting(), History()
    boosting.fit(examples)
    history.fit(examples)
    mine, theirs = (concordance(truth, one.predict(moments).mean) for one in (boosting, history))
    assert mine is not None
    assert theirs is not None
    assert mine > 0.7
    assert mine > theirs + 0.1
    said, before = boosting.predict(moments), history.predict(moments)
    assert (np.diff(said.quantiles, axis=1) >= 0).all()
    np.testing.assert_allclose(said.sigma, before.sigma)
