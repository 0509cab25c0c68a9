"""Records of the history on local disk, from the moment they come until the database has them.

A segment is a file of JSON lines, one record each, appended by one write() a record: what was written is the
operating system's from then on, so a process that is killed leaves it behind, all but a line it was in the
middle of. Against a host that loses power only what was synced is safe: what an outage leaves on disk alone.
The first line names the fields of steps, so that another release reads them.

A segment's name is `spill-<nanoseconds>-<process>.jsonl`; names sort by age. Processes may share a folder:
each holds a lock (`<process>.lock`) for as long as it lives, and at its start takes up the segments of those
that do not. The folder must be on a local disk. It is bounded in bytes, by each process for itself.
"""

import errno
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from heddle_contracts.admin import EndReason
from heddle_contracts.history import EndedTrajectory, HistoryRecord, PlanRecord
from heddle_contracts.migrations import Move
from heddle_contracts.planning import Plan
from heddle_contracts.steps import StepRecord
from heddle_core import AppendFile, json_row

logger = logging.getLogger(__name__)

# An earlier release wrote the number of records where the process stands.
_SEGMENT: Final = re.compile(r"spill-\d{20}-([0-9a-f]+)\.jsonl")
_LOCK: Final = re.compile(r"([0-9a-f]+)\.lock")
_FIELDS: Final = tuple(name for name in StepRecord.model_fields if name != "schema_version")
_values_of: Final = attrgetter(*_FIELDS)
_HEAD: Final = b'{"fields": '
_FIRST_LINE: Final = _HEAD + json.dumps(_FIELDS).encode() + b"}\n"
OPENINGS: Final = 3


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the folder: its name, how many records and bytes it holds."""

    name: str
    records: int = 0
    size: int = 0
    file: AppendFile | None = None
    """Open while records are added."""
    failed_reads: int = 0


_by_turn: Final = attrgetter("failed_reads", "name")


class SpillFolder:
    """The segments of this process, and of those that ended before. Raises OSError when the folder cannot be
    made, locked or read.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._locks: dict[str, int] = {}
        self._segments: list[Segment] = []
        self._used = 0
        self._last_ns = 0
        self._process = self._open()
        self._segments = [found for process in self._left_behind() for found in self._take_up(process)]
        self._segments.sort(key=lambda segment: segment.name)
        self._used = sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """Those that are on disk alone, oldest first; last those that could not be read."""
        return self._segments

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self._segments)

    @property
    def room(self) -> int:
        """Bytes that may come."""
        return self._limit - self._used

    # ---------------------------------------------------------------- what comes

    def begin(self) -> Segment:
        """A new segment; its file is made with its first record."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return Segment(f"spill-{self._last_ns:020d}-{self._process}.jsonl")

    def append(self, segment: Segment, item: Any) -> None:
        """Adds a record, in microseconds. Raises OSError when the folder is full or cannot be written, and
        TypeError, ValueError or AttributeError for an object that is not a record.
        """
        line = _line_of(item) if segment.size else _FIRST_LINE + _line_of(item)
        if len(line) > self.room:
            raise OSError(errno.ENOSPC, f"more than {self._limit} bytes", str(self._path))
        if segment.file is None:
            segment.file = AppendFile(self._path / segment.name)
        written = segment.file.append(line)
        if written < len(line):
            segment.file.truncate(segment.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        segment.records += 1
        segment.size += written
        self._used += written

    def seal(self, segment: Segment) -> None:
        """Nothing is added for now."""
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def sync(self, segment: Segment) -> None:
        """Brings it to the disk itself. Blocks: call it in a thread. Raises OSError."""
        file = os.open(self._path / segment.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def leave(self, segment: Segment) -> None:
        """From now on its records are on disk alone."""
        self._segments.append(segment)
        self._segments.sort(key=_by_turn)

    def postpone(self, segment: Segment) -> None:
        """It cannot be read now: the others come first."""
        segment.failed_reads += 1
        self._segments.sort(key=_by_turn)

    # ---------------------------------------------------------------- what is written elsewhere

    def read(self, segment: Segment) -> list[StepRecord | HistoryRecord]:
        """The records of a segment; lines that are none are left out. Blocks: call it in a thread. Raises
        OSError.
        """
        found: list[StepRecord | HistoryRecord] = []
        names: Sequence[str] = _FIELDS
        for line in (self._path / segment.name).read_bytes().splitlines():
            try:
                data = json.loads(line)
                if isinstance(data, dict) and "fields" in data:
                    names = [str(name) for name in data["fields"]]
                else:
                    found.append(_item_of(data, names))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    def take_out(self, segment: Segment) -> None:
        """It is not to be read any more; the file stays, and so does the room it takes."""
        with suppress(ValueError):
            self._segments.remove(segment)

    def remove(self, segment: Segment) -> None:
        """Removes the file; `forget` is to follow. Blocks: call it in a thread. Raises OSError."""
        self.seal(segment)
        (self._path / segment.name).unlink(missing_ok=True)

    def forget(self, segment: Segment) -> None:
        """The file is removed: its room is free."""
        self.take_out(segment)
        self._used -= segment.size
        segment.size = segment.records = 0

    def close(self) -> None:
        """Lets another process take up what is left."""
        left = {match[1] for name in self._names() if (match := _SEGMENT.fullmatch(name))}
        for process, lock in self._locks.items():
            with suppress(OSError):
                if process not in left:
                    (self._path / f"{process}.lock").unlink(missing_ok=True)
                os.close(lock)
        self._locks.clear()
        with suppress(OSError):
            self._path.rmdir()  # where nothing is left

    # ---------------------------------------------------------------- processes

    def _open(self) -> str:
        """Makes the folder; returns the locked name of this process."""
        fault: OSError = BlockingIOError(errno.EAGAIN, "no lock is to be had", str(self._path))
        for _ in range(OPENINGS):
            self._path.mkdir(parents=True, exist_ok=True)
            process = uuid4().hex[:12]
            try:
                if self._lock(process):
                    return process
                # Another process that starts saw the file before it was locked, and took it for a dead one's.
            except FileNotFoundError as error:
                # Another process has just closed the folder as empty.
                fault = error
        raise fault

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except OSError:
            return []

    def _left_behind(self) -> set[str]:
        """Processes that left segments or a lock, and do not live."""
        names = self._names()
        named = {match[1] for name in names if (match := _SEGMENT.fullmatch(name) or _LOCK.fullmatch(name))}
        return {process for process in named if process != self._process and self._may_lock(process)}

    def _may_lock(self, process: str) -> bool:
        try:
            return self._lock(process)
        except OSError as error:
            # Another user's, for one: it costs nobody else's history.
            logger.warning("%s: what process %s left is left alone: %s", self._path, process, error)
            return False

    def _lock(self, process: str) -> bool:
        """Whether this process speaks for that one from now on."""
        lock = os.open(self._path / f"{process}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            os.close(lock)
            raise
        self._locks[process] = lock
        return True

    def _take_up(self, process: str) -> list[Segment]:
        """Its segments as they are now that it is locked."""
        found = []
        for name in self._names():
            match = _SEGMENT.fullmatch(name)
            if match is None or match[1] != process:
                continue
            try:
                segment = self._found(name)
            except OSError as error:
                logger.warning("%s is left alone: %s", self._path / name, error)
            else:
                found += [segment] if segment is not None else []
        return found

    def _found(self, name: str) -> Segment | None:
        """A segment as it lies there; one without records is removed."""
        data = (self._path / name).read_bytes()
        lines = data.count(b"\n") + bool(data and not data.endswith(b"\n")) - data.startswith(_HEAD)
        if lines:
            return Segment(name, lines, len(data))
        (self._path / name).unlink(missing_ok=True)
        return None


def _line_of(item: Any) -> bytes:
    # Python's JSON writes lone surrogates as escapes, where pydantic's refuses them.
    match item:
        case EndedTrajectory():
            line: Any = {"end": asdict(item)}
        case PlanRecord():
            line = {"plan": item.plan.model_dump(), "lengths": list(item.lengths)}
        case Move():
            line = {"move": item.model_dump()}
        case _:
            line = _values_of(item)
            if (row := json_row(line)) is not None:
                return row
    return (json.dumps(line) + "\n").encode("ascii")


def _item_of(data: Any, names: Sequence[str]) -> StepRecord | HistoryRecord:
    """``names``: of a step's values. Raises ValueError, TypeError or KeyError."""
    if isinstance(data, list):
        named = dict(zip(names, data, strict=True))
        return StepRecord.model_validate({name: named[name] for name in _FIELDS if name in named})
    if "end" in data:
        end = data["end"]
        return EndedTrajectory(end["tenant"], end["trajectory_id"], EndReason(end["reason"]), end["ended_at"])
    if "plan" in data:
        return PlanRecord(Plan.model_validate(data["plan"]), data["lengths"])
    if "move" in data:
        return Move.model_validate(data["move"])
    return StepRecord.model_validate(data["step"])
