"""Which GPUs an engine gets."""

import pytest
from heddle_shim.host.gpus import NoRoom, check, named, pick
from hypothesis import given
from hypothesis import strategies as st


@given(total=st.integers(1, 16), taken=st.sets(st.integers(0, 15)), degree=st.integers(1, 16))
def test_neighbours_that_are_free_or_none(total: int, taken: set[int], degree: int) -> None:
    taken = {gpu for gpu in taken if gpu < total}
    runs = [set(range(first, first + degree)) for first in range(total - degree + 1)]
    possible = any(not run & taken for run in runs)
    try:
        gpus = pick(total, taken, degree)
    except NoRoom:
        assert not possible
        return
    assert possible
    assert gpus == tuple(range(gpus[0], gpus[0] + degree))
    assert not set(gpus) & taken
    assert gpus[-1] < total


def test_small_engines_leave_whole_blocks_whole() -> None:
    taken: set[int] = set()
    for _ in range(4):
        taken |= set(pick(8, taken, 1))
    assert pick(8, taken, 4) == (4, 5, 6, 7)
    assert pick(8, {0, 1}, 2) == (2, 3)
    assert pick(8, {5}, 1) == (4,)


@pytest.mark.parametrize(
    ("gpus", "said"), [([1, 1], "twice"), ([8], "0 to 7, not 8"), ([3, 0], "0, 3 are in use")]
)
def test_gpus_that_cannot_be_are_named(gpus: list[int], said: str) -> None:
    with pytest.raises(NoRoom, match=said):
        check(8, {0, 3}, gpus)
    assert check(8, {0, 3}, [2, 1]) == (1, 2)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("0", "1", "2", "3")),
        ("4,5,6,7", ("4", "5", "6", "7")),
        ("7, 2,GPU-8932f937,MIG-1d2e,0", ("7", "2", "GPU-8932f937", "MIG-1d2e")),
    ],
)
def test_a_host_has_the_gpus_that_it_was_given(visible: str | None, names: tuple[str, ...]) -> None:
    assert named(4, visible) == names


@pytest.mark.parametrize("visible", ["", "0,1,2", "0,1,2,-1,4", "0,1,,2,3"])
def test_a_host_that_was_given_fewer_gpus_than_it_offers_says_so(visible: str) -> None:
    with pytest.raises(NoRoom, match=r"^gpus: 4 are offered, but CUDA_VISIBLE_DEVICES="):
        named(4, visible)
