"""Degrees that suit the lengths, on the hosts that there are."""

import pytest
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from heddle_planner.fleet.shape import ShapeError
from heddle_planner.fleet.worth import best_shape
from heddle_planner.plan_lengths import Lengths
from heddle_planner.profiles import load_profile

PROFILE = load_profile("qwen3-8b-h100")
ONE_LONG = [200_000.0] + [100.0] * 6


def a_host(name: str, gpus: int) -> HostStatus:
    """Every GPU with an engine of its own."""
    engines = [
        HostEngine(
            id=f"{name}{gpu}",
            degree=1,
            gpus=(gpu,),
            state=EngineState.READY,
            url="http://x",
            detail="",
            started_in_s=1.0,
        )
        for gpu in range(gpus)
    ]
    return HostStatus(name=name, gpus=gpus, emulated=False, engines=tuple(engines))


def shape_of(*gpus: int, allowed: tuple[int, ...] = (1, 2, 4, 8)) -> tuple[int, ...]:
    hosts = {f"h{number}": a_host(f"h{number}", count) for number, count in enumerate(gpus)}
    lengths = Lengths(list(range(len(ONE_LONG))), ONE_LONG, [0.0] * len(ONE_LONG))
    moves, worth = best_shape(hosts, lengths, PROFILE, allowed, 0.0)
    assert worth is not None
    assert moves.before == (1,) * sum(gpus)
    return moves.after


def test_degrees_larger_than_any_host_are_left_out() -> None:
    assert max(shape_of(8)) == 8
    assert max(shape_of(4, 4)) == 4
    assert max(shape_of(2, 2, 2, 2)) == 2
    assert set(shape_of(*[1] * 8)) == {1}


def test_a_shape_that_needs_gpus_of_two_hosts_for_one_engine_is_none() -> None:
    after = shape_of(3, 3, 3, 3, allowed=(2,))
    assert set(after) == {2}
    assert sum(after) <= 8
    assert max(shape_of(6, 6, allowed=(1, 2, 4))) <= 4


def test_where_no_degree_fits_it_is_said() -> None:
    with pytest.raises(
        ShapeError, match=r"^--allowed: none of 4, 8 is in the profile and fits on a host; the"
    ):
        shape_of(2, 2, allowed=(4, 8))
