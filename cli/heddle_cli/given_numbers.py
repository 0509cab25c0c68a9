"""Numbers that people type: what JSON has no word for is refused before it is sent."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle_cli.exit_codes import CommandFailed, Exit


def _degrees(text: str) -> str:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of MP degrees such as 4,2,1,1,1")
    return text


def _above_zero(number: float) -> float:
    if not (math.isfinite(number) and number > 0):
        raise typer.BadParameter(f"{number:g} is not above 0")
    return number


Degrees = Annotated[str, typer.Option("--tp", help="MP degrees of the emulated workers.", callback=_degrees)]
Speed = Annotated[
    float, typer.Option("--speed", help="Emulated seconds per real second.", callback=_above_zero)
]


def from_json(text: str) -> Any:
    """What it says. Raises ValueError for what is not JSON, NaN and infinities as well."""
    return json.loads(text, parse_constant=_refuse)


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Raises CommandFailed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(Exit.USAGE, f"{path}: {error}") from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def lengths_of(path: Path) -> list[float]:
    """One number of tokens a line. Raises CommandFailed that names file and line."""
    return [_length(line, f"{path}: line {number}") for number, line in lines_of(path)]


def _length(line: str, at: str) -> float:
    try:
        length = float(line)
    except ValueError:
        length = math.nan
    if not math.isfinite(length):
        raise CommandFailed(
            Exit.USAGE, f"{at}: {line.strip()[:60]!r} is no number of tokens; give one number a line"
        )
    return length


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")
