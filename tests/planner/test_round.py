"""A round of planning: what goes in, what plan comes out."""

from collections.abc import Callable, Sequence

import pytest
from heddle_contracts.planning import ActiveTrajectory, Alternative, PlanMaking, PlanReason, PlanWorker
from heddle_planner.profiles import load_profile
from heddle_planner.round import LEAST_GAIN, NothingLive, RoundError, Window, chosen, fallback, plan_round
from heddle_planner.simulate.scripts import Script

Fleet = Callable[..., list[PlanWorker]]
Active = Callable[..., list[ActiveTrajectory]]


def test_every_live_trajectory_is_in_one_share_and_ranks_follow_lengths(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    live = active(60, context_tokens=800)
    plan = plan_round(Window(fleet(4, 2, 1, 1), live, past, error=0.6), 1_000.0)
    planned = [member for members in plan.members for member in members]
    by_length = sorted(live, key=lambda one: -one.remaining)
    assert planned == [one.trajectory_id for one in by_length]
    assert sum(share.size for share in plan.shares) == plan.trajectories == 60
    assert sorted(share.worker for share in plan.shares if share.worker) == [1, 2, 3, 4]
    first = 0
    for share in plan.shares:
        assert share.first_rank == (first if share.size else None)
        assert len(plan.members[plan.shares.index(share)]) == share.size
        first += share.size
    assert plan.shape == tuple(share.degree for share in plan.shares)


def test_a_plan_says_what_it_was_made_of_and_how_long_it_holds(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    window = Window(fleet(2, 1), active(12), past, error=0.5)
    plan = plan_round(window, 1_000.0, reason=PlanReason.WORKERS, ttl_s=60.0)
    assert (plan.made_at, plan.expires_at) == (1_000.0, 1_060.0)
    assert plan.reason is PlanReason.WORKERS
    assert plan.live
    assert plan.profile == "learned from the live workers"
    assert 0 < plan.lower_bound_s <= plan.alternatives[0].worst_makespan_s
    assert plan.version is None


def test_equal_windows_give_equal_plans_and_other_ones_another_digest(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    window = Window(fleet(2, 1), active(20), past, error=0.5)
    timings = {"solve_seconds", "rehearsal_seconds"}
    first, second = (plan_round(window, 1_000.0).model_dump(exclude=timings) for _ in range(2))
    assert first == second
    other = Window(fleet(2, 1), active(20, seed=2), past, error=0.5)
    assert plan_round(other, 1_000.0).inputs_digest != first["inputs_digest"]


def test_the_plan_and_the_simplest_placements_are_rehearsed_and_the_best_is_taken(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    plan = plan_round(Window(fleet(4, 1, 1), active(48), past, error=0.8), 1_000.0)
    ways = {one.name: one for one in plan.alternatives}
    assert ways.keys() == {"plan", "by_rank", "sticky", "least_load"}
    spans = [one.expected_makespan_s for one in plan.alternatives]
    assert spans == sorted(spans)
    pays = ways["by_rank"].expected_makespan_s > LEAST_GAIN * spans[0]
    best = plan.alternatives[0] if pays else ways["by_rank"]
    assert plan.expected_makespan_s == best.expected_makespan_s
    assert plan.placement == best.placement
    assert (plan.making is PlanMaking.SHARES) == best.with_plan
    assert plan.fallback_placement == fallback(plan.alternatives)


@pytest.mark.parametrize(
    ("spans", "taken"),
    [
        ({"plan": 90.0, "sticky": 95.0, "by_rank": 100.0, "least_load": 120.0}, "plan"),
        ({"plan": 92.0, "sticky": 95.0, "by_rank": 100.0, "least_load": 120.0}, "by_rank"),
        ({"sticky": 80.0, "plan": 92.0, "by_rank": 100.0, "least_load": 120.0}, "sticky"),
        ({"by_rank": 80.0, "plan": 92.0, "sticky": 100.0, "least_load": 120.0}, "by_rank"),
    ],
)
def test_what_runs_without_a_plan_stays_unless_another_way_is_much_quicker(
    spans: dict[str, float], taken: str
) -> None:
    rehearsed = [
        Alternative(name=name, placement="by_rank", expected_makespan_s=seconds, worst_makespan_s=seconds)
        for name, seconds in spans.items()
    ]
    found = chosen(rehearsed)
    assert found is not None
    assert found.name == taken


@pytest.mark.parametrize(
    ("spans", "taken"),
    [
        ({"sticky": 98.0, "by_rank": 100.0, "least_load": 120.0}, "by_rank"),
        ({"least_load": 50.0, "sticky": 80.0, "by_rank": 100.0}, "sticky"),
        ({"least_load": 50.0, "by_rank": 80.0, "sticky": 100.0}, "by_rank"),
        ({}, "by_rank"),
    ],
)
def test_when_no_plan_follows_only_a_placement_that_is_much_quicker_takes_over(
    spans: dict[str, float], taken: str
) -> None:
    plan = Alternative(
        name="plan", placement="by_rank", expected_makespan_s=10.0, worst_makespan_s=10.0, with_plan=True
    )
    rehearsed = [
        Alternative(name=name, placement=name, expected_makespan_s=seconds, worst_makespan_s=seconds)
        for name, seconds in spans.items()
    ]
    assert fallback([plan, *rehearsed] if rehearsed else []) == taken


def test_one_long_trajectory_gets_the_fastest_worker_for_itself(fleet: Fleet, active: Active) -> None:
    live = [
        ActiveTrajectory(tenant="", trajectory_id=f"t{number}", remaining=length, sigma=0.05)
        for number, length in enumerate([900.0] * 20 + [60_000.0])
    ]
    plan = plan_round(Window(fleet(1, 4), live, error=0.05), 0.0)
    first = plan.shares[0]
    assert (first.worker, first.degree) == (2, 4)
    assert plan.members[0][0] == "t20"
    assert first.limited_by == "longest_trajectory"
    assert first.longest == 60_000.0


def test_equal_workers_keep_the_long_ones_that_they_hold(fleet: Fleet, active: Active) -> None:
    workers = fleet(1, 1)
    holds_long = workers[1].model_copy(update={"homed": 2, "homed_remaining": 50_000.0})
    holds_short = workers[0].model_copy(update={"homed": 8, "homed_remaining": 4_000.0})
    plan = plan_round(Window([holds_short, holds_long], active(24)), 0.0)
    assert plan.shares[0].worker == holds_long.id


def test_one_that_would_outgrow_every_worker_does_not_stop_the_others_being_planned(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    endless = ActiveTrajectory(tenant="", trajectory_id="endless", remaining=1e8, context_tokens=2_000)
    plan = plan_round(Window(fleet(2, 1, kv_tokens=50_000), [endless, *active(9)], past), 0.0)
    assert plan.trajectories == 10
    assert plan.members[0][0] == "endless"
    assert 0 < plan.expected_makespan_s < 1e6


def test_nothing_live_is_said_with_what_to_do(fleet: Fleet, active: Active) -> None:
    with pytest.raises(NothingLive, match=r"^lengths: no trajectory is live; give lengths"):
        plan_round(Window(fleet(1), []), 0.0)
    with pytest.raises(NothingLive, match=r"^workers: none is live"):
        plan_round(Window([], active(3)), 0.0)


def test_an_operators_profile_must_have_the_degrees_that_are_live(fleet: Fleet, active: Active) -> None:
    known = load_profile("qwen3-8b-h100")
    window = Window(fleet(2, 1), active(6), profile=known, profile_name="qwen3-8b-h100")
    assert plan_round(window, 0.0).profile == "qwen3-8b-h100"
    odd = Window(fleet(3), active(6), profile=known, profile_name="qwen3-8b-h100")
    with pytest.raises(RoundError, match=r"^profile: qwen3-8b-h100 has no MP degree 3"):
        plan_round(odd, 0.0)


def test_a_round_of_many_trajectories_of_many_steps_stays_bounded(
    fleet: Fleet, active: Active, past: Sequence[Script]
) -> None:
    live = [one.model_copy(update={"remaining": 200_000.0}) for one in active(300)]
    plan = plan_round(Window(fleet(2, 1, kv_tokens=4_000_000), live, past, error=0.3), 0.0)
    assert plan.trajectories == 300
    assert len(plan.alternatives) == 4
