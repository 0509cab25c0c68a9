"""Forecasts of tool gaps."""

import math
import random

import pytest
from heddle_planner.predictor.gap import MOST_TOOLS, GapPredictor


def test_a_first_gap_without_data_is_about_a_second() -> None:
    said = GapPredictor().predict("t", "bash")
    assert said.median == pytest.approx(1.0)
    assert said.low < said.median < said.mean < said.high


def test_tools_differ_and_an_unknown_one_is_like_all() -> None:
    gaps, draw = GapPredictor(), random.Random(0)
    for _ in range(300):
        gaps.learn("a", "read", 0.1 * math.exp(draw.gauss(0, 0.3)))
        gaps.learn("b", "test", 60 * math.exp(draw.gauss(0, 0.3)))
    assert gaps.predict("new", "read").median == pytest.approx(0.1, rel=0.3)
    assert gaps.predict("new", "test").median == pytest.approx(60, rel=0.3)
    assert 0.1 < gaps.predict("new", "unknown").median < 60


def test_a_trajectory_with_slow_tools_is_expected_to_stay_slow() -> None:
    gaps, draw = GapPredictor(), random.Random(0)
    for number in range(200):
        gaps.learn(f"{number % 20}", "bash", math.exp(draw.gauss(0, 0.2)))
    for _ in range(12):
        gaps.learn("slow", "bash", 8.0)
    assert gaps.predict("slow", "bash").median > 2.5 * gaps.predict("new", "bash").median
    gaps.forget("slow")
    assert gaps.predict("slow", "bash") == gaps.predict("new", "bash")


def test_intervals_hold_what_they_say_and_old_times_are_forgotten() -> None:
    gaps, draw = GapPredictor(), random.Random(3)
    for _ in range(500):
        gaps.learn("a", "bash", 30.0)
    inside = 0
    for _ in range(2_000):
        gaps.learn(f"{draw.random()}", "bash", 0.5 * math.exp(draw.gauss(0, 0.8)))
    for _ in range(500):
        said, was = gaps.predict("new", "bash"), 0.5 * math.exp(draw.gauss(0, 0.8))
        inside += said.low <= was <= said.high
    assert gaps.predict("new", "bash").median == pytest.approx(0.5, rel=0.4)
    assert 0.84 < inside / 500 < 0.97


def test_the_median_alone_is_that_of_the_forecast() -> None:
    gaps, draw = GapPredictor(), random.Random(5)
    for number in range(600):
        gaps.learn(f"{number % 7}", draw.choice(["bash", "read", ""]), math.exp(draw.gauss(0, 2)))
        asked = (f"{number % 9}", draw.choice(["bash", "read", "never"]))
        assert gaps.median(*asked) == pytest.approx(gaps.predict(*asked).median, rel=1e-12)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_what_is_no_time_is_left_out(seconds: float) -> None:
    gaps = GapPredictor()
    gaps.learn("t", "bash", seconds)
    assert gaps.predict("t", "bash") == GapPredictor().predict("t", "bash")


def test_names_without_end_take_no_memory_without_end() -> None:
    gaps = GapPredictor()
    for number in range(2 * MOST_TOOLS):
        gaps.learn("t", f"tool-{number}", 5.0)
    assert len(gaps._tools) == MOST_TOOLS
