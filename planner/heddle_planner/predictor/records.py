"""Reads recorded trajectories: JSON lines, plain or gzipped, one trajectory a line.

    {"id", "task_id", "domain", "sample", "model", "prompt_tokens0", "steps": [{"input_new_tokens",
     "output_tokens", "tool", "tool_seconds", "tool_error", "llm_seconds", "text", "obs_text"}, ...]}

and, as `heddle predictor export` writes them, ``schema_version`` (1), ``started_at`` (seconds) and
``finished``. ``NAME.text.jsonl.gz`` beside ``NAME.jsonl.gz`` holds full texts, joined by ``id``. Fields not
named here are left alone. What is wrong is an error that names file, line and field; a lenient reader
leaves the line out and counts it.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from heddle_planner.predictor.observations import EndedStep, Origin, Trajectory

SCHEMA_VERSION: Final = 1
MOST_TOKENS: Final = 100_000_000
"""Largest token count of a field: beyond every model's context, so a slip of units or of the recorder."""
MOST_STEPS: Final = 100_000
MOST_SECONDS: Final = 31_536_000.0
"""A year."""
MOST_TASK_NAME: Final = 1_024


class DataError(ValueError):
    """A file that cannot be read as trajectories; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """The trajectories of one file. ``skipped`` lines were wrong; ``problems`` are their messages, the
    first ten.
    """

    name: str
    path: Path
    trajectories: tuple[Trajectory, ...]
    tasks: tuple[str, ...]
    skipped: int = 0
    problems: tuple[str, ...] = ()


def is_text_file(path: Path) -> bool:
    """Whether it holds the texts of another file."""
    return path.name.removesuffix(".gz").endswith(".text.jsonl")


def set_name(path: Path) -> str:
    """``cctraces`` for ``.../cctraces.jsonl.gz``."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


def load_set(path: Path, *, lenient: bool = False, texts: bool = True) -> RecordedSet:
    """Every trajectory of a file. Raises DataError, when lenient only where nothing is left.

    Without ``texts`` numbers and names alone are kept.
    """
    found: list[Trajectory] = []
    tasks: list[str] = []
    problems: list[str] = []
    skipped = 0
    seen: dict[str, int] = {}
    prompts = _load_texts(path, lenient=lenient) if texts else {}
    for number, line in _lines(path):
        try:
            fields = _object(line, f"{path}:{number}")
            trajectory = _trajectory(fields, f"{path}:{number}", prompts)
            if not texts:
                trajectory = _without_texts(trajectory)
            identity = trajectory.origin.trajectory_id
            if identity in seen:
                raise DataError(f"{path}:{number}: id: {identity!r} is that of line {seen[identity]} too")
        except DataError as error:
            if not lenient:
                raise
            skipped += 1
            if len(problems) < 10:
                problems.append(str(error))
            continue
        seen[identity] = number
        found.append(trajectory)
        tasks.append(str(fields["task_id"]))
    if not found:
        detail = f"; the first of {skipped} skipped: {problems[0]}" if problems else ""
        raise DataError(f"{path}: holds no trajectory{detail}")
    return RecordedSet(set_name(path), path, tuple(found), tuple(tasks), skipped, tuple(problems))


def _without_texts(trajectory: Trajectory) -> Trajectory:
    steps = tuple(step._replace(text=None, observation=None) for step in trajectory.steps)
    return replace(trajectory, origin=replace(trajectory.origin, prompt_text=None), steps=steps)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as raw:
            stream: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: must be a JSON object, not {type(fields).__name__}")
    return fields


def _trajectory(fields: Mapping[str, Any], where: str, texts: "Mapping[str, _Texts]") -> Trajectory:
    version = fields.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise DataError(
            f"{where}: schema_version: {version!r} is not {SCHEMA_VERSION}, the one that is read here"
        )
    task = _string(fields, "task_id", where, required=True)
    identity = _string(fields, "id", where) or f"{task}/{fields.get('sample')}"
    steps = fields.get("steps")
    if not isinstance(steps, list) or not steps:
        raise DataError(f"{where}: steps: must be a list of at least one step, not {_shown(steps)}")
    if len(steps) > MOST_STEPS:
        raise DataError(f"{where}: steps: {len(steps)} are more than {MOST_STEPS}")
    sample = fields.get("sample")
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int)):
        raise DataError(f"{where}: sample: must be an integer or null, not {_shown(sample)}")
    finished = fields.get("finished", True)
    if not isinstance(finished, bool):
        raise DataError(f"{where}: finished: must be true or false, not {_shown(finished)}")
    text = texts.get(identity)
    return Trajectory(
        origin=Origin(
            trajectory_id=identity,
            prompt=task,
            domain=_string(fields, "domain", where),
            model=_string(fields, "model", where),
            sample=sample,
            prompt_tokens=_tokens(fields, "prompt_tokens0", where),
            prompt_text=text.prompt if text is not None else None,
        ),
        steps=_steps(steps, where, text),
        finished=finished,
        started_at=_number(fields, "started_at", where, most=math.inf),
    )


def _steps(steps: list[Any], where: str, texts: "_Texts | None") -> tuple[EndedStep, ...]:
    """Steps as they are known at their ends: what a call's tool said and took belongs to the step after
    it.
    """
    ended: list[EndedStep] = []
    gap: float | None = None
    error: bool | None = None
    observation: str | None = None
    for index, fields in enumerate(steps):
        here = f"{where}: steps[{index}]"
        if not isinstance(fields, dict):
            raise DataError(f"{here}: must be a JSON object, not {_shown(fields)}")
        tool = _string(fields, "tool", here)
        stop = _string(fields, "stop", here) or _string(fields, "finish_reason", here)
        full = texts.steps[index] if texts is not None and index < len(texts.steps) else (None, None)
        text = full[0] if full[0] is not None else _optional(fields, "text", here)
        ended.append(
            EndedStep(
                output_tokens=_tokens(fields, "output_tokens", here),
                input_tokens=_tokens(fields, "input_new_tokens", here),
                tools=tuple(tool.split("+")) if tool else (),
                finish_reason=stop or None,
                seconds=_number(fields, "llm_seconds", here),
                gap_before_s=gap,
                error_before=error,
                observation=observation,
                text=text,
                compacted=fields.get("context_reset") is True,
            )
        )
        gap = _number(fields, "tool_seconds", here)
        error = fields.get("tool_error")
        if error is not None and not isinstance(error, bool):
            raise DataError(f"{here}: tool_error: must be true, false or null, not {_shown(error)}")
        observation = full[1] if full[1] is not None else _optional(fields, "obs_text", here)
    return tuple(ended)


@dataclass(frozen=True, slots=True)
class _Texts:
    prompt: str | None
    steps: tuple[tuple[str | None, str | None], ...]


def _load_texts(path: Path, *, lenient: bool) -> dict[str, _Texts]:
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    beside = [path.with_name(f"{stem}.text.jsonl{end}") for end in (".gz", "")]
    source = next((one for one in beside if one.is_file()), None)
    if source is None:
        return {}
    found: dict[str, _Texts] = {}
    for number, line in _lines(source):
        try:
            fields = _object(line, f"{source}:{number}")
            identity = _string(fields, "id", f"{source}:{number}", required=True)
            found[identity] = _texts(fields, f"{source}:{number}")
        except DataError:
            if not lenient:
                raise
    return found


def _texts(fields: Mapping[str, Any], where: str) -> _Texts:
    messages = fields.get("prompt")
    if messages is not None and not isinstance(messages, list):
        raise DataError(f"{where}: prompt: must be a list of messages, not {_shown(messages)}")
    contents = [m.get("content") for m in messages or [] if isinstance(m, dict)]
    # The last message is the task; what comes before it is the harness's, alike for all.
    prompt = next((c for c in reversed(contents) if isinstance(c, str)), None)
    steps = fields.get("steps")
    if steps is not None and not isinstance(steps, list):
        raise DataError(f"{where}: steps: must be a list, not {_shown(steps)}")
    pairs = []
    for index, step in enumerate(steps or []):
        if not isinstance(step, dict):
            raise DataError(f"{where}: steps[{index}]: must be a JSON object, not {_shown(step)}")
        here = f"{where}: steps[{index}]"
        pairs.append((_optional(step, "text", here), _optional(step, "obs", here)))
    return _Texts(prompt, tuple(pairs))


def _tokens(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{where}: {name}: must be an integer, not {_shown(value)}")
    if not 0 <= value <= MOST_TOKENS:
        raise DataError(f"{where}: {name}: must be in 0..{MOST_TOKENS} tokens, not {value}")
    return value


def _number(fields: Mapping[str, Any], name: str, where: str, most: float = MOST_SECONDS) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {name}: must be a number of seconds or null, not {_shown(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or not 0.0 <= seconds <= most:
        raise DataError(f"{where}: {name}: must be in 0..{most:g} seconds, not {_shown(value)}")
    return seconds


def _optional(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: {name}: must be a string or null, not {_shown(value)}")
    return value


def _string(fields: Mapping[str, Any], name: str, where: str, *, required: bool = False) -> str:
    value = _optional(fields, name, where)
    if required and not value:
        raise DataError(f"{where}: {name}: must be a string that is not empty, not {_shown(value)}")
    if value is not None and len(value) > MOST_TASK_NAME:
        raise DataError(f"{where}: {name}: is longer than {MOST_TASK_NAME} characters")
    return value or ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
