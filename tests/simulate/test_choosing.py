"""Which way is taken from a few rehearsals of each."""

from collections.abc import Mapping

import pytest
from heddle_planner.simulate.choosing import Draw, choose


def told(seconds: Mapping[str, float], asked: list[str]) -> Draw:
    def draw(name: str) -> float | None:
        asked.append(name)
        return seconds.get(name)

    return draw


def test_ways_that_are_close_are_rehearsed_again_and_the_best_on_average_is_taken() -> None:
    asked: list[list[str]] = [[], [], []]
    draws = [
        told({"lucky": 100.0, "steady": 102.0, "slow": 120.0}, asked[0]),
        told({"lucky": 110.0, "steady": 101.0, "slow": 1.0}, asked[1]),
        told({"lucky": 112.0, "steady": 103.0}, asked[2]),
    ]
    name, means = choose(["lucky", "slow", "steady"], draws)
    assert name == "steady", "the first draw alone takes what was lucky on it"
    assert means == pytest.approx({"lucky": 322 / 3, "steady": 102.0, "slow": 120.0})
    assert asked == [["lucky", "slow", "steady"], ["lucky", "steady"], ["lucky", "steady"]]


def test_one_way_that_is_far_ahead_is_rehearsed_once() -> None:
    asked: list[str] = []
    draws = [told({"a": 100.0, "b": 90.0}, asked), told({"a": 1.0, "b": 2.0}, asked)]
    assert choose(["a", "b"], draws) == ("b", {"a": 100.0, "b": 90.0})
    assert asked == ["a", "b"]


def test_a_way_that_a_draw_has_no_plan_for_is_left_out() -> None:
    first, second = {"plan": 99.0, "plain": 100.0, "none": 101.0}, {"plain": 105.0, "none": 103.0}
    name, means = choose(first, [told(first, []), told(second, [])])
    assert name == "none"
    assert means == {"plan": 99.0, "plain": 102.5, "none": 102.0}
    assert choose(["plain", "none"], [told(first, []), told({}, [])])[0] == "plain"


def test_equal_ways_go_by_name_and_nothing_to_rehearse_is_an_error() -> None:
    assert choose(["b", "a"], [told({"a": 1.0, "b": 1.0}, [])])[0] == "a"
    with pytest.raises(ValueError, match="nothing could be rehearsed"):
        choose(["a"], [told({}, [])])
