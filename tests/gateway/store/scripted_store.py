"""A store that answers as told, and what the tests of the history queue ask of it."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from heddle_contracts.admin import HistoryStats
from heddle_contracts.steps import Outcome, StepRecord

WriteResult = Literal["written", "unavailable", "refused"]


def step(number: int = 0, trajectory_id: str = "t", **changes: object) -> StepRecord:
    fields: dict[str, object] = {
        "trajectory_id": trajectory_id,
        "tenant": "",
        "source": "header",
        "dialect": "chat",
        "step": number,
        "outcome": Outcome.DONE,
        "output_tokens": 7,
        "arrived_at": 1000.0 + number,
        "ended_at": 1000.5 + number,
    }
    return StepRecord.model_validate(fields | changes)


class ScriptedStore:
    """A store that answers as told and keeps what it took; ``fault`` decides per batch."""

    last_error: str | None = "as told"

    def __init__(self, fault: Callable[[Sequence[Any]], WriteResult] = lambda _: "written") -> None:
        self.fault = fault
        self.batches: list[list[Any]] = []
        self.tries = 0
        self.tried = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def prepare(self) -> bool:
        return True

    async def write(
        self,
        ended_steps: Sequence[Any],
        ended_trajectories: Sequence[Any],
        segment: str | None = None,
        settled: Sequence[str] = (),
    ) -> WriteResult:
        self.tries += 1
        self.tried.set()
        await self.open.wait()
        result = self.fault(ended_steps)
        if result == "written":
            self.batches.append([*ended_steps, *ended_trajectories])
        return result

    @property
    def numbers(self) -> list[int]:
        return [one.step for batch in self.batches for one in batch]


def accounted(stats: HistoryStats) -> bool:
    came = stats.put + stats.recovered
    return came == stats.written + stats.queued + stats.spilled + stats.dropped + stats.refused


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a count, not an event
            await asyncio.sleep(0.002)


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


QUICK = {"linger_s": 0.005, "first_retry_s": 0.002, "longest_retry_s": 0.01}
