"""From a file of predicted lengths to a plan: what ``heddle plan`` does, without the command line.

A file holds one number a line, or JSON lines ``{"id", "predicted", "sigma"?}``; blank lines are passed over.
Trajectories without an id are named by their index, counting from 0. Lengths are output tokens still to come.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import heddle_core
from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import CostName, SolverName


class LengthsError(ValueError):
    """A file of lengths that cannot be read; says the file, the line, the field and what is wanted there."""


class PlannedGroup(TypedDict):
    """One worker: members by id, longest first; cost in seconds."""

    degree: int
    members: list[str | int]
    cost: float


class PlanOfLengths(TypedDict):
    """The plan as ``heddle plan --json`` prints it; ``seconds`` is the time to solve."""

    makespan: float
    gpus_used: int
    seconds: float
    workers: list[PlannedGroup]


@dataclass(slots=True)
class Lengths:
    """Trajectories in file order."""

    ids: list[str | int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """What to solve besides the lengths. Rates are per output token; see ``heddle_core.solve``."""

    profile: WorkerProfile
    gpus: int
    degrees: tuple[int, ...]
    solver: SolverName = "exact"
    cost: CostName = "size_only"
    workers: tuple[int, ...] = ()
    context_tokens: float = 0.0
    cold_tokens: float = 0.0
    input_per_output: float = 0.0
    tool_seconds_per_output: float = 0.0
    aggregate_below: float = 0.0
    seed: int = 0


def read_lengths(path: Path) -> Lengths:
    """Reads the file. Raises LengthsError."""
    lengths = Lengths()
    seen: dict[str | int, int] = {}
    try:
        for number, line in _lines(path):
            at = f"{path}: line {number}"
            fields = _fields(line, at)
            name = _name(fields, len(lengths.ids), at)
            if name in seen:
                raise LengthsError(
                    f"{at}: field id: {name!r} is on line {seen[name]} already; give each its own"
                )
            seen[name] = number
            lengths.ids.append(name)
            lengths.predicted.append(_tokens(fields, "predicted", at))
            lengths.sigmas.append(_tokens(fields, "sigma", at) if fields.get("sigma") is not None else 0.0)
    except (OSError, UnicodeDecodeError) as error:
        raise LengthsError(f"{path}: cannot be read: {error}") from error
    if not lengths.ids:
        raise LengthsError(f"{path}: no lengths; give one number a line, or JSON lines with id and predicted")
    return lengths


def plan_lengths(lengths: Lengths, problem: Problem) -> PlanOfLengths:
    """Solves and puts the ids in. Raises ValueError naming the field that does not fit."""
    solved = heddle_core.solve(
        lengths.predicted,
        sigmas=lengths.sigmas,
        gpus=problem.gpus,
        degrees=problem.degrees,
        workers=problem.workers,
        profile_json=problem.profile.model_dump_json(),
        solver=problem.solver,
        cost=problem.cost,
        context_tokens=problem.context_tokens,
        cold_tokens=problem.cold_tokens,
        input_per_output=problem.input_per_output,
        tool_seconds_per_output=problem.tool_seconds_per_output,
        aggregate_below=problem.aggregate_below,
        seed=problem.seed,
    )
    return {
        "makespan": solved["makespan"],
        "gpus_used": solved["gpus_used"],
        "seconds": solved["seconds"],
        "workers": [
            {
                "degree": worker["degree"],
                "members": [lengths.ids[index] for index in worker["members"]],
                "cost": worker["cost"],
            }
            for worker in solved["workers"]
        ],
    }


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                yield number, text


def _fields(line: str, at: str) -> dict[str, Any]:
    """A line as fields; a bare number is a predicted length."""
    try:
        value: Any = json.loads(line)
    except ValueError:
        raise LengthsError(
            f"{at}: {_short(line)} is neither a number nor JSON; give a number of tokens, or "
            '{"id": ..., "predicted": ..., "sigma": ...}'
        ) from None
    if isinstance(value, dict):
        return value
    return {"predicted": value}


def _name(fields: dict[str, Any], index: int, at: str) -> str | int:
    name = fields.get("id")
    if name is None:
        return index
    if isinstance(name, (str, int)) and not isinstance(name, bool):
        return name
    raise LengthsError(f"{at}: field id: {_short(json.dumps(name))} is neither a string nor an integer")


def _tokens(fields: dict[str, Any], key: str, at: str) -> float:
    if key not in fields:
        raise LengthsError(f"{at}: field {key}: missing; give the number of output tokens still to come")
    value = fields[key]
    # json reads NaN and Infinity; a length is neither.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise LengthsError(
        f"{at}: field {key}: {_short(json.dumps(value))} is not a finite number of tokens >= 0"
    )


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
