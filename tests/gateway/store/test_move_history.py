"""Ended moves of KV in SQL, on both databases."""

from pathlib import Path
from typing import Any

from heddle_contracts.migrations import Move, MoveFilter, MoveState
from heddle_gateway.store.move_history import MoveHistory
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.telemetry.spill import SpillFolder
from sqlalchemy.ext.asyncio import AsyncEngine


def move(number: int, **changes: Any) -> Move:
    fields: dict[str, Any] = {
        "id": number,
        "process": "p",
        "trajectory_id": f"t{number}",
        "tenant": "",
        "from_worker": "w1",
        "to_worker": "w2",
        "state": MoveState.LANDED,
        "asked_by": "policy",
        "tokens": 5000,
        "tokens_landed": 4992,
        "bytes_moved": 3 << 32,
        "seconds": 0.25,
        "ended_at": 1000.0 + number,
    }
    return Move.model_validate(fields | changes)


async def ids(engine: AsyncEngine, after: Any = None, limit: int = 100, **wanted: Any) -> list[int]:
    return [one.id for one in await MoveHistory(engine).page(MoveFilter(**wanted), after, limit)]


async def test_a_move_is_read_as_it_was_written_and_written_once(engine: AsyncEngine) -> None:
    failed = move(
        1, state=MoveState.FAILED, fault="broken", detail="é", step_waited=True, asked_by="operator"
    )
    writer = StepWriter(engine)
    for _ in range(2):
        assert await writer.write([], [failed]) == "written"
    assert await MoveHistory(engine).page(MoveFilter(), None, 10) == [failed]


async def test_a_text_that_no_database_takes_is_mended(engine: AsyncEngine) -> None:
    assert await StepWriter(engine).write([], [move(1, detail="a\0b", trajectory_id="\ud800")]) == "written"
    (found,) = await MoveHistory(engine).page(MoveFilter(), None, 10)
    assert (found.detail, found.trajectory_id) == ("a\ufffdb", "?")


async def test_moves_of_two_processes_do_not_meet(engine: AsyncEngine) -> None:
    await StepWriter(engine).write([], [move(1), move(1, process="q", trajectory_id="other")])
    found = await MoveHistory(engine).page(MoveFilter(), None, 10)
    assert [one.trajectory_id for one in found] == ["other", "t1"]


async def test_pages_hold_each_move_once_the_latest_first(engine: AsyncEngine) -> None:
    # Equal times on purpose: ties must not be lost between pages.
    moves = [move(number, ended_at=1000.0 + number // 3, process="pq"[number % 2]) for number in range(17)]
    await StepWriter(engine).write([], moves)
    found: list[Move] = []
    after = None
    while page := await MoveHistory(engine).page(MoveFilter(), after, 4):
        found += page
        after = (page[-1].ended_at or 0.0, page[-1].process, page[-1].id)
    assert sorted(one.id for one in found) == list(range(17))
    places = [(one.ended_at, one.process, one.id) for one in found]
    assert places == sorted(places, reverse=True)


async def test_filters_choose_what_they_name(engine: AsyncEngine) -> None:
    moves = [
        move(1, tenant="x"),
        move(2, from_worker="w2", to_worker="w3"),
        move(3, state=MoveState.EXPIRED, fault="deadline"),
        move(4, asked_by="operator", trajectory_id="t1"),
    ]
    await StepWriter(engine).write([], moves)
    for wanted, chosen in (
        ({}, [4, 3, 2, 1]),
        ({"tenant": "x"}, [1]),
        ({"worker": "w1"}, [4, 3, 1]),
        ({"worker": "w3"}, [2]),
        ({"state": MoveState.EXPIRED}, [3]),
        ({"asked_by": "operator"}, [4]),
        ({"trajectory_id": "t1"}, [4, 1]),
        ({"since": 1003.0}, [4, 3]),
    ):
        assert await ids(engine, **wanted) == chosen, wanted
        assert sorted(one.id for one in moves if MoveFilter(**wanted).takes(one)) == sorted(chosen), wanted


async def test_moves_wait_on_disk_as_steps_do(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path / "spill", 1_000_000)
    segment = folder.begin()
    folder.append(segment, move(1))
    folder.seal(segment)
    folder.close()
    later = SpillFolder(tmp_path / "spill", 1_000_000)
    assert later.read(later.segments[0]) == [move(1)]
