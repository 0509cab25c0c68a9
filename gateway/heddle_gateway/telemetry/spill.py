"""Segments of history records on local disk, for the time the database is away.

A segment is one batch as JSON lines, written under another name and renamed, so that a file that is there is
whole. Its name carries the time and the count: `spill-<nanoseconds>-<records>.jsonl`; names sort by age. The
folder is bounded in bytes. Methods block on the disk: call them in a thread.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heddle_contracts.admin import EndReason
from heddle_contracts.history import EndedTrajectory, HistoryRecord, PlanRecord
from heddle_contracts.migrations import Move
from heddle_contracts.planning import Plan
from heddle_contracts.steps import StepRecord

_NAME = re.compile(r"spill-\d{20}-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the folder: its name and how many records it holds."""

    name: str
    records: int


class SpillFolder:
    """The segments of one gateway process and of its predecessors. Two processes must not share a folder."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._segments: list[Segment] = []

    @property
    def segments(self) -> Sequence[Segment]:
        """Known segments, oldest first."""
        return self._segments

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self._segments)

    def scan(self) -> None:
        """Finds what an earlier process left. Raises OSError when the folder cannot be made."""
        self._path.mkdir(parents=True, exist_ok=True)
        for half_written in self._path.glob("*.partial"):
            half_written.unlink()
        names = sorted(path.name for path in self._path.iterdir() if _NAME.fullmatch(path.name))
        self._segments = [Segment(name, int(_NAME.fullmatch(name)[1])) for name in names]  # type: ignore[index]

    def add(self, batch: Sequence[Any]) -> bool:
        """Keeps a batch; False when the folder is full.

        Raises OSError, and ValueError for an object that is not a record.
        """
        lines = "".join(_line_of(item) for item in batch).encode()
        used = sum((self._path / segment.name).stat().st_size for segment in self._segments)
        if used + len(lines) > self._limit:
            return False
        name = f"spill-{time.time_ns():020d}-{len(batch)}.jsonl"
        partial = self._path / f"{name}.partial"
        with partial.open("wb") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path / name)
        self._segments.append(Segment(name, len(batch)))
        return True

    def read(self, segment: Segment) -> list[StepRecord | HistoryRecord]:
        """The records of a segment; lines that are not records are left out. Raises OSError."""
        found: list[StepRecord | HistoryRecord] = []
        for line in (self._path / segment.name).read_bytes().splitlines():
            try:
                found.append(_item_of(line))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    def remove(self, segment: Segment) -> None:
        """Forgets a segment whose records are in the database."""
        (self._path / segment.name).unlink(missing_ok=True)
        self._segments.remove(segment)


def _line_of(item: Any) -> str:
    # Python's JSON writes lone surrogates as escapes, where pydantic's refuses them.
    match item:
        case EndedTrajectory():
            line: dict[str, Any] = {"end": asdict(item)}
        case PlanRecord():
            line = {"plan": item.plan.model_dump(), "lengths": list(item.lengths)}
        case Move():
            line = {"move": item.model_dump()}
        case _:
            line = {"step": StepRecord.model_validate(item, from_attributes=True).model_dump()}
    return json.dumps(line) + "\n"


def _item_of(line: bytes) -> StepRecord | HistoryRecord:
    data = json.loads(line)
    if "end" in data:
        end = data["end"]
        return EndedTrajectory(end["tenant"], end["trajectory_id"], EndReason(end["reason"]), end["ended_at"])
    if "plan" in data:
        return PlanRecord(Plan.model_validate(data["plan"]), data["lengths"])
    if "move" in data:
        return Move.model_validate(data["move"])
    return StepRecord.model_validate(data["step"])
