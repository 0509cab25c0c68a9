"""Recorded trajectories as workloads: read a file, draw whole tasks, scale.

The format is JSON lines, plain or gzipped: ``task_id, sample, prompt_tokens0, steps[]`` with
``input_new_tokens, output_tokens, tool, tool_seconds``. Where ``tool_seconds`` was not recorded, or was a
person thinking (``tool == "user"`` in sessions), a rollout has a program in that place: its time is drawn
from the recorded tool times of the same file, or, where there are none, from `UNRECORDED`.

Tasks are drawn whole: lengths within a task are alike (the same prompt), and a draw of single
trajectories would lose that. Tasks come in a random order, each once, then again in another order.
"""

import gzip
import json
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle_planner.simulate.scripts import Script, Turn

UNRECORDED: Final = (0.5, 1.0)
"""Tool seconds where a file records none: lognormal (median, sigma), so that 3/4 are below a second."""
MOST_TOOL_SECONDS: Final = 600.0
"""Recorded tool times are cut to this, a usual limit of coding agents' shells: what is longer in recorded
sessions is a person who was asked for leave."""
WITHIN_TASK_SIGMA: Final = 0.49
"""Spread of the logarithm of length among samples made up from one recorded run: that among the four
samples of a task in the recorded airline set, whose tasks spread by 0.53."""


class RecordError(ValueError):
    """A file of records that cannot be read; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded LLM call; ``tool_seconds`` is None where no program's time was recorded."""

    input: int
    output: int
    tool_seconds: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded run of a task."""

    task: str
    prompt: int
    turns: tuple[RecordedTurn, ...]
    forecasts: tuple[tuple[float, float], ...] = ()
    """What a trained predictor said before each step: mean tokens and sigma. Empty where none was asked."""


def load_records(path: Path) -> list[Record]:
    """Every trajectory of a file. Raises RecordError."""
    records: list[Record] = []
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{where}: not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise RecordError(f"{where}: must be a JSON object")
        records.append(_record(fields, where))
    if not records:
        raise RecordError(f"{path}: holds no trajectory")
    return records


def draw_scripts(
    records: Sequence[Record],
    *,
    trajectories: int,
    group_size: int | None,
    scale_output: float,
    seed: int,
) -> list[Script]:
    """``trajectories`` scripts from whole tasks.

    Without ``group_size`` a task brings its recorded samples. With it, it brings that many: its samples
    in turn; where there are fewer, the further ones have their lengths scaled by a lognormal factor of
    mean 1 (`WITHIN_TASK_SIGMA`), which forecasts do not know. ``scale_output`` multiplies every step's output
    tokens and what was said of them.
    """
    draw = random.Random(seed)
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record.task, []).append(record)
    known_tools = [
        turn.tool_seconds for record in records for turn in record.turns if turn.tool_seconds is not None
    ]
    scripts: list[Script] = []
    group = 0
    while len(scripts) < trajectories:
        tasks = list(by_task.values())
        draw.shuffle(tasks)
        for samples in tasks:
            size = group_size or len(samples)
            for index in range(size):
                copied = index >= len(samples)
                luck = _factor(draw) if copied else 1.0
                sample = samples[index % len(samples)]
                scripts.append(_script(sample, group, scale_output, luck, draw, known_tools))
            group += 1
            if len(scripts) >= trajectories:
                break
    return scripts[:trajectories]


def _factor(draw: random.Random) -> float:
    return math.exp(draw.gauss(-(WITHIN_TASK_SIGMA**2) / 2, WITHIN_TASK_SIGMA))


def _script(
    record: Record, group: int, scale: float, luck: float, draw: random.Random, known_tools: Sequence[float]
) -> Script:
    """``luck`` makes a sample up out of another; whoever foretold the recorded one did not know of it."""

    def tool_seconds(turn: RecordedTurn) -> float:
        if turn.tool_seconds is not None:
            return turn.tool_seconds
        if known_tools:
            return draw.choice(known_tools)
        median, sigma = UNRECORDED
        return median * math.exp(draw.gauss(0.0, sigma))

    return Script(
        prompt=record.prompt,
        group=group,
        turns=tuple(
            Turn(
                input=turn.input if index else 0,
                output=max(1, round(turn.output * scale * luck)),
                tool_seconds=tool_seconds(turn),
            )
            for index, turn in enumerate(record.turns)
        ),
        forecasts=tuple((max(1.0, mean * scale), sigma) for mean, sigma in record.forecasts),
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as raw:
            stream: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error


def _record(fields: Mapping[str, Any], where: str) -> Record:
    task = fields.get("task_id")
    if not isinstance(task, str):
        raise RecordError(f"{where}: task_id must be a string, not {task!r}")
    steps = fields.get("steps")
    if not isinstance(steps, list) or not steps:
        raise RecordError(f"{where}: steps must be a list of at least one step")
    prompt = _tokens(fields, "prompt_tokens0", where)
    if prompt < 1:
        raise RecordError(f"{where}: prompt_tokens0 must be at least 1, not {prompt}")
    return Record(task, prompt, tuple(_turn(step, f"{where}: steps[{i}]") for i, step in enumerate(steps)))


def _turn(step: object, where: str) -> RecordedTurn:
    if not isinstance(step, dict):
        raise RecordError(f"{where}: must be a JSON object")
    seconds = step.get("tool_seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise RecordError(f"{where}: tool_seconds must be a number or null, not {seconds!r}")
    waits_for_person = step.get("tool") == "user"
    return RecordedTurn(
        # Compaction and rounding of server counts give values below what a message can have.
        input=max(0, _tokens(step, "input_new_tokens", where)),
        output=max(1, _tokens(step, "output_tokens", where)),
        tool_seconds=None
        if seconds is None or waits_for_person
        else min(MOST_TOOL_SECONDS, max(0.0, float(seconds))),
    )


def _tokens(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecordError(f"{where}: {name} must be an integer, not {value!r}")
    return value
