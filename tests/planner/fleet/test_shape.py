"""Moves from one shape to another: on any hosts they end in what was wanted, and never hold a GPU twice."""

from collections import Counter

import pytest
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from heddle_planner.fleet.shape import Reshaping, ShapeError, reshape
from hypothesis import given
from hypothesis import strategies as st


def host(name: str, gpus: int, *degrees: int, state: EngineState = EngineState.READY) -> HostStatus:
    """Engines of these degrees from the first GPU on."""
    engines, first = [], 0
    for number, degree in enumerate(degrees):
        block = tuple(range(first, first + degree))
        url = f"http://{name}:{first}"
        engines.append(HostEngine(id=f"e{number}", degree=degree, gpus=block, state=state, url=url))
        first += degree
    return HostStatus(name=name, gpus=gpus, engines=tuple(engines))


def played(hosts: dict[str, HostStatus], plan: Reshaping) -> dict[str, dict[tuple[int, ...], str]]:
    """What runs after the moves, checked at each."""
    runs = {
        name: {engine.gpus: engine.id for engine in one.engines if engine.state is EngineState.READY}
        for name, one in hosts.items()
    }
    lowest = sum(len(gpus) for one in runs.values() for gpus in one)
    for move in plan.moves:
        if move.kind == "stop":
            assert runs[move.host].pop(move.gpus) == move.engine
        serving = sum(len(gpus) for one in runs.values() for gpus in one)
        assert move.serving == serving
        lowest = min(lowest, serving)
        if move.kind == "start":
            assert set(move.gpus) <= set(range(hosts[move.host].gpus))
            assert move.gpus == tuple(range(move.gpus[0], move.gpus[0] + move.degree))
            taken = {gpu for gpus in runs[move.host] for gpu in gpus}
            assert not taken & set(move.gpus), "two engines on one GPU"
            runs[move.host][move.gpus] = "new"
    assert plan.lowest == lowest
    return runs


@given(
    hosts=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.lists(st.sampled_from([1, 2, 4, 8]), max_size=8)),
        min_size=1,
        max_size=4,
    ),
    wanted=st.lists(st.sampled_from([1, 1, 2, 4, 8]), min_size=1, max_size=12),
)
def test_any_shape_that_fits_is_reached(hosts: list[tuple[int, list[int]]], wanted: list[int]) -> None:
    machines = {}
    for number, (gpus, degrees) in enumerate(hosts):
        fitting: list[int] = []
        for degree in sorted(degrees, reverse=True):
            if sum(fitting) + degree <= gpus:
                fitting.append(degree)
        machines[f"h{number}"] = host(f"h{number}", gpus, *fitting)
    # Powers of two on hosts of powers of two fit if and only if they fit largest first.
    room = sorted((one.gpus for one in machines.values()), reverse=True)
    fits = True
    for degree in sorted(wanted, reverse=True):
        roomy = [place for place, free in enumerate(room) if free >= degree]
        if not roomy:
            fits = False
            break
        room[min(roomy, key=lambda place: room[place])] -= degree
    try:
        plan = reshape(machines, wanted, floor=0.0)
    except ShapeError:
        assert not fits
        return
    assert fits
    runs = played(machines, plan)
    assert Counter(len(gpus) for one in runs.values() for gpus in one) == Counter(wanted)


def test_what_is_as_wanted_is_not_touched() -> None:
    machines = {"a": host("a", 8, 4, 2, 1, 1)}
    assert reshape(machines, [1, 4, 1, 2], floor=1.0).moves == ()


def test_only_what_is_in_the_way_is_ended() -> None:
    machines = {"a": host("a", 8, *[1] * 8)}
    plan = reshape(machines, [4, 1, 1, 1, 1], floor=0.5)
    assert [move.kind for move in plan.moves] == ["stop"] * 4 + ["start"]
    assert plan.lowest == 4


def test_sixteen_ones_become_8_4_2_1_1_with_half_of_them_serving() -> None:
    machines = {"a": host("a", 8, *[1] * 8), "b": host("b", 8, *[1] * 8)}
    plan = reshape(machines, [8, 4, 2, 1, 1], floor=0.5)
    runs = played(machines, plan)
    assert sorted((len(gpus) for one in runs.values() for gpus in one), reverse=True) == [8, 4, 2, 1, 1]
    assert plan.lowest == 8
    with pytest.raises(ShapeError, match=r"--floor: at one time only 8 GPUs .* 0\.50 would do"):
        reshape(machines, [8, 4, 2, 1, 1], floor=0.6)


@pytest.mark.parametrize(
    ("wanted", "floor", "said"),
    [
        ([], 0.0, "--degrees"),
        ([0], 0.0, "--degrees"),
        ([9], 0.0, "9 GPUs are wanted, the hosts have 8"),
        ([8], 0.0, "neighbouring GPUs of one host, and the largest has 4"),
        ([1], 1.5, "--floor"),
    ],
)
def test_what_cannot_be_is_explained(wanted: list[int], floor: float, said: str) -> None:
    machines = {"a": host("a", 4, 1), "b": host("b", 4)}
    with pytest.raises(ShapeError, match=said):
        reshape(machines, wanted, floor)


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.DRAINING, EngineState.FAILED])
def test_an_engine_on_its_way_is_waited_for(state: EngineState) -> None:
    with pytest.raises(ShapeError, match="engine e0"):
        reshape({"a": host("a", 2, 1, state=state)}, [2], floor=0.0)
