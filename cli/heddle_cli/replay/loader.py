"""Recorded trajectories: JSON lines, one trajectory a line, plain or gzipped.

A line holds ``id, task_id, sample, domain, prompt_tokens0, steps[]``. A step is one LLM call:
``input_new_tokens`` (appended before it; ignored at step 0, whose prompt is ``prompt_tokens0``),
``output_tokens``, ``tool``, ``tool_seconds`` (of the call this step emits; null where not recorded). Other
fields are ignored, so files with texts can be read too.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

SHIPPED: Final = ("vorflux", "tau_airline")
"""Records that come with the package; see recorded/README.md."""


class RecordError(ValueError):
    """A file of records that cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One LLM call. Tokens are at least 0 and 1; ``tool_seconds`` is None where it was not recorded."""

    input_new_tokens: int
    output_tokens: int
    tool: str | None
    tool_seconds: float | None


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """One agent run. Trajectories of one ``task_id`` are samples of the same prompt."""

    id: str
    task_id: str
    sample: int
    domain: str
    prompt_tokens: int
    steps: tuple[RecordedStep, ...]

    @property
    def output_tokens(self) -> int:
        return sum(step.output_tokens for step in self.steps)

    def context_before(self, step: int) -> int:
        """Prompt tokens of a step: all that was said and appended before it."""
        earlier = sum(one.output_tokens for one in self.steps[:step])
        return self.prompt_tokens + earlier + sum(one.input_new_tokens for one in self.steps[1 : step + 1])

    def cut(self, *, max_steps: int | None = None, max_context: int | None = None) -> "RecordedTrajectory":
        """Its beginning: at most ``max_steps`` steps, none whose prompt and answer exceed ``max_context``."""
        steps: list[RecordedStep] = []
        context = self.prompt_tokens
        for index, step in enumerate(self.steps[:max_steps]):
            context += (step.input_new_tokens if index else 0) + step.output_tokens
            if max_context is not None and context > max_context:
                break
            steps.append(step)
        return replace(self, steps=tuple(steps))


def load_shipped(name: str) -> list[RecordedTrajectory]:
    """One of the record sets in ``SHIPPED``.

    Raises:
        RecordError: there is no such set.
    """
    if name not in SHIPPED:
        raise RecordError(f"no shipped records named {name!r}; there are {', '.join(SHIPPED)}")
    with as_file(files("heddle_cli.replay") / "recorded" / f"{name}.jsonl.gz") as path:
        return load(path)


def load(path: Path) -> list[RecordedTrajectory]:
    """Every trajectory of a file, in its order.

    Raises:
        RecordError: the file cannot be read, or a line is no trajectory.
    """
    trajectories: list[RecordedTrajectory] = []
    for number, line in _lines(path):
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{place}: {error}") from error
        trajectories.append(_trajectory(record, place))
    if not trajectories:
        raise RecordError(f"{path}: holds no trajectory")
    return trajectories


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as raw:
            stream: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise RecordError(f"{path}: {error}") from error


def _trajectory(record: object, place: str) -> RecordedTrajectory:
    if not isinstance(record, dict):
        raise RecordError(f"{place}: must be a JSON object")
    steps = record.get("steps")
    if not isinstance(steps, list) or not steps:
        raise RecordError(f"{place}: steps must be a list of at least one step")
    return RecordedTrajectory(
        id=_text(record, "id", place),
        task_id=_text(record, "task_id", place),
        sample=_count(record, "sample", place, least=0, default=0),
        domain=_text(record, "domain", place, default=""),
        prompt_tokens=_count(record, "prompt_tokens0", place, least=1),
        steps=tuple(_step(step, f"{place}: steps[{index}]") for index, step in enumerate(steps)),
    )


def _step(step: object, place: str) -> RecordedStep:
    if not isinstance(step, dict):
        raise RecordError(f"{place}: must be a JSON object")
    seconds = step.get("tool_seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise RecordError(f"{place}: tool_seconds must be a number or null, not {seconds!r}")
    tool = step.get("tool")
    return RecordedStep(
        # Compaction and the rounding of server counts give values below what a message can have.
        input_new_tokens=_count(step, "input_new_tokens", place, least=0, raised=True),
        output_tokens=_count(step, "output_tokens", place, least=1, raised=True),
        tool=tool if isinstance(tool, str) else None,
        tool_seconds=None if seconds is None else max(0.0, float(seconds)),
    )


def _text(record: Mapping[str, Any], name: str, place: str, *, default: str | None = None) -> str:
    value = record.get(name, default)
    if not isinstance(value, str):
        raise RecordError(f"{place}: {name} must be a string, not {value!r}")
    return value


def _count(
    record: Mapping[str, Any],
    name: str,
    place: str,
    *,
    least: int,
    default: int | None = None,
    raised: bool = False,
) -> int:
    """An integer of at least ``least``; with ``raised`` a lower one counts as ``least``."""
    value = record.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecordError(f"{place}: {name} must be an integer, not {value!r}")
    if value < least and not raised:
        raise RecordError(f"{place}: {name} must be at least {least}, not {value}")
    return max(value, least)
