"""Leads and their intervals: none where there is none, wide where few trajectories tell."""

from dataclasses import replace

import numpy as np
from heddle_planner.predictor.bootstrap import leads
from heddle_planner.predictor.evaluate import Held
from heddle_planner.predictor.protocol import Floats, lognormal


def held(trajectories: int, noise: float, moments: int = 8, seed: int = 0) -> Held:
    """Predictions that are off by a normal error of ``noise`` in the logarithm, one error a trajectory."""
    draw = np.random.default_rng(seed)
    number = np.repeat(np.arange(trajectories), moments).astype(np.intp)
    whole = np.exp(draw.normal(8, 1, trajectories))[number]
    steps = np.tile(np.arange(moments), trajectories).astype(np.intp)
    truth: Floats = whole * (1 - steps / moments)
    said = truth * np.exp(np.random.default_rng(seed + 1).normal(0, noise, trajectories)[number])
    return Held(
        truth=truth,
        steps=steps,
        progress=steps / moments,
        fold=(number % 5).astype(np.intp),
        trajectory=number,
        said=lognormal(said, np.ones(len(said))),
    )


def test_a_predictor_does_not_lead_itself() -> None:
    one = held(100, noise=1.0)
    for lead in leads(one, one, one.steps >= 0).values():
        assert (lead.ahead, lead.low, lead.high) == (0.0, 0.0, 0.0)


def test_a_better_predictor_leads_beyond_luck_and_is_led_by_as_much() -> None:
    good, bad = held(200, noise=0.2), held(200, noise=2.0)
    found, turned = leads(good, bad, good.steps == 2), leads(bad, good, good.steps == 2)
    assert set(found) == {"recall_top10", "pearson", "concordance"}
    for name, lead in found.items():
        assert 0 < lead.low < lead.ahead
        np.testing.assert_allclose(turned[name].ahead, -lead.ahead)
        np.testing.assert_allclose(turned[name].high, -lead.low)
        scored = good.scores(good.steps == 2)[name]  # type: ignore[literal-required]
        np.testing.assert_allclose(lead.score, scored)


def test_many_moments_of_few_trajectories_are_still_few() -> None:
    """The same moments taken for trajectories of their own would seem to tell much more."""
    good, bad = held(40, 0.8, moments=50), held(40, 1.2, moments=50)
    alone = np.arange(len(good.truth), dtype=np.intp)
    rows = good.steps >= 0
    wide = leads(good, bad, rows)["concordance"]
    narrow = leads(replace(good, trajectory=alone), bad, rows)["concordance"]
    assert wide.ahead == narrow.ahead
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_same_seed_gives_the_same_interval() -> None:
    good, bad = held(50, noise=0.5), held(50, noise=1.0)
    rows = good.steps >= 2
    assert leads(good, bad, rows) == leads(replace(good), bad, rows)
    assert leads(good, bad, rows) != leads(good, bad, rows, seed=1)


def test_measures_that_rows_do_not_give_are_left_out() -> None:
    one = held(3, noise=1.0)
    assert leads(one, one, one.steps == 0) == {}
