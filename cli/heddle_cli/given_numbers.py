"""Numbers that people type: what JSON has no word for is refused before it is sent."""

import json
import math
from pathlib import Path
from typing import Any

from heddle_cli.exit_codes import CommandFailed, Exit


def from_json(text: str) -> Any:
    """What it says. Raises ValueError for what is not JSON, NaN and infinities as well."""
    return json.loads(text, parse_constant=_refuse)


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Raises CommandFailed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
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
