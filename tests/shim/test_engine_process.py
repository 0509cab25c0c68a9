"""A launched engine is watched, started again with back-off, and stopped with all its children."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from heddle_shim.engine_process import EngineProcess

# Starts a child of its own, as SGLang does, notes both, and waits.
ENGINE = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1], "a") as notes:
    notes.write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what is waited for is another process
            await asyncio.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def engine(notes: Path, starts: list[int], program: str = ENGINE) -> EngineProcess:
    command = [sys.executable, "-c", program, str(notes)]
    return EngineProcess(lambda: command, dict(os.environ), None, starts.append, first_delay_s=0.01)


def noted(notes: Path) -> list[list[int]]:
    if not notes.exists():
        return []
    return [[int(pid) for pid in line.split()] for line in notes.read_text().splitlines()]


async def test_each_start_has_the_command_line_of_its_moment(tmp_path: Path) -> None:
    """The model that lies at a path may be another one by then, and its KV too."""
    notes = [tmp_path / "first", tmp_path / "second"]
    left = list(notes)

    def command() -> list[str]:
        return [sys.executable, "-c", ENGINE, str(left.pop(0))]

    process = EngineProcess(command, dict(os.environ), None, lambda _: None, first_delay_s=0.01)
    running = asyncio.create_task(process.run())
    await until(lambda: len(noted(notes[0])) == 1)
    os.kill(noted(notes[0])[0][0], 9)
    await until(lambda: len(noted(notes[1])) == 1)
    await process.stop()
    await running


async def test_an_engine_that_is_killed_is_started_again(tmp_path: Path) -> None:
    notes, starts = tmp_path / "notes", list[int]()
    process = engine(notes, starts)
    running = asyncio.create_task(process.run())
    await until(lambda: len(noted(notes)) == 1)
    [[pid, child]] = noted(notes)
    assert process.pid == pid
    os.kill(pid, 9)
    await process.ended(0)
    assert process.last_exit == "was killed by SIGKILL"
    await until(lambda: len(noted(notes)) == 2)
    # What the dead one had started does not go on beside the new one.
    await until(lambda: not runs(child))
    assert starts == [1, 2]
    await process.stop()
    await running
    assert process.pid is None


async def test_a_stop_takes_the_children_along(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    process = engine(notes, [])
    running = asyncio.create_task(process.run())
    await until(lambda: len(noted(notes)) == 1)
    await process.stop()
    await running
    [[pid, child]] = noted(notes)
    await until(lambda: not runs(pid) and not runs(child))
    await process.stop()  # once more is no error


async def test_an_engine_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    deaf = ENGINE.replace("child =", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nchild =")
    process = engine(notes, [], deaf)
    running = asyncio.create_task(process.run())
    await until(lambda: len(noted(notes)) == 1)
    await process.stop(grace_s=0.1)
    await running
    [[pid, child]] = noted(notes)
    await until(lambda: not runs(pid) and not runs(child))


async def test_one_that_ends_at_once_is_started_with_growing_delays(tmp_path: Path) -> None:
    starts: list[int] = []
    process = engine(tmp_path / "notes", starts, "import sys; sys.exit(3)")
    running = asyncio.create_task(process.run())
    await until(lambda: len(starts) >= 4)
    assert process.last_exit == "ended with exit code 3"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await process.stop()
