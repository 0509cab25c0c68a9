"""Plans for given lengths: workers chosen or fixed, and what is refused."""

import random

import pytest
from heddle_contracts.planning import PlanCompute
from heddle_contracts.worker_profile import DegreeProfile
from heddle_planner.given_lengths import plan_given
from heddle_planner.profiles import load_profile
from heddle_planner.round import RoundError
from heddle_planner.shares import Shape, lower_bound

PROFILE = load_profile("qwen3-8b-h100")


def plan_of(**asked: object):  # type: ignore[no-untyped-def]
    return plan_given(PlanCompute.model_validate(asked), PROFILE, "qwen3-8b-h100", 5.0)


def test_every_length_is_placed_once_longest_first_on_at_most_the_gpus() -> None:
    draw = random.Random(3)
    lengths = [draw.lognormvariate(8, 1.2) for _ in range(500)]
    plan = plan_of(lengths=lengths, gpus=16, degrees=[1, 2, 4])
    placed = [index for members in plan.members for index in members]
    assert sorted(placed) == list(range(500))
    assert [lengths[index] for index in placed] == sorted(lengths, reverse=True)
    assert sum(plan.shape) <= 16
    assert not plan.live
    assert plan.lower_bound_s <= plan.expected_makespan_s


def test_workers_of_one_degree_are_shown_as_the_alternatives_and_none_is_better() -> None:
    plan = plan_of(lengths=[52_000, 31_000, 8_000, 7_500, 4_000, 900], gpus=8, degrees=[1, 2, 4, 8])
    names = {one.name for one in plan.alternatives}
    assert "8 workers of degree 1" in names
    assert "1 workers of degree 8" in names
    assert all(one.expected_makespan_s >= plan.expected_makespan_s - 1e-9 for one in plan.alternatives)


def test_fixed_workers_are_used_as_they_are() -> None:
    plan = plan_of(lengths=[9_000, 500, 400, 300], workers=[4, 1])
    assert sorted(plan.shape) == [1, 4]
    assert plan.gpus == 5
    assert plan.alternatives == ()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lengths": [1.0]}, r"^gpus: not given"),
        ({"lengths": [1.0], "gpus": 4, "degrees": [3]}, r"^degrees: the profile has no MP degree 3"),
        ({"lengths": [1.0], "gpus": 1, "degrees": [2, 4]}, r"^degrees: none of"),
        ({"lengths": [1.0, 2.0], "gpus": 1, "sigmas": [1.0]}, "sigmas"),
    ],
)
def test_what_cannot_be_planned_names_the_field(asked: dict[str, object], message: str) -> None:
    with pytest.raises(RoundError, match=message):
        plan_of(**asked)


@pytest.mark.parametrize("slots", [3, 40, 97, 200, 256])
@pytest.mark.parametrize("cost", ["size_only", "simulated"])
def test_no_plan_is_shorter_than_its_lower_bound_at_any_number_of_slots(slots: int, cost: str) -> None:
    known = {
        degree: one.model_copy(update={"slots": slots, "seconds_per_context_token": 0.0})
        for degree, one in PROFILE.degrees.items()
    }
    profile = PROFILE.model_copy(update={"degrees": known})
    asked = PlanCompute.model_validate({"lengths": [1_000.0] * slots, "workers": [1], "cost": cost})
    plan = plan_given(asked, profile, "", 0.0)
    assert 0.99 * plan.expected_makespan_s < plan.lower_bound_s <= plan.expected_makespan_s * (1 + 1e-9)


def test_the_bound_takes_the_batch_that_gives_most_where_a_larger_one_gives_less() -> None:
    steep = DegreeProfile(batches=(1, 8, 9), step_seconds=(0.01, 0.01, 1.0), slots=9)
    profile = PROFILE.model_copy(update={"degrees": {1: steep}})
    assert lower_bound([1_000.0] * 9, [1], profile, Shape()) == pytest.approx(9_000 * 0.01 / 8)
