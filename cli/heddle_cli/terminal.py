"""Prints answers: tables for people, JSON for scripts."""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Wide enough that nothing is cut off where the output is read by a program.
PIPE_WIDTH = 400


def console() -> Console:
    """Standard output; as wide as the terminal, or as needed where there is none."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def print_json(answer: Any) -> None:
    """One JSON document."""
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns whose name begins with '#' hold numbers and are set right; the sign is not shown."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix("#"), justify="right" if column.startswith("#") else "left", overflow="fold"
        )
    for row in rows:
        # As Text: ids are not rich's markup.
        table.add_row(*(Text("-" if value is None or value == "" else str(value)) for value in row))
    shown = console()
    if shown.is_terminal:
        shown.print(table)
        return
    with shown.capture() as text:
        shown.print(table)
    # A long note in one row would fill all others with spaces.
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Name and value a line; what is not known is left out."""
    known = [(name, value) for name, value in facts if value not in (None, "", {}, [])]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        print(f"{name:<{width}}  {value}")


def ago(when: float | None) -> str | None:
    """An epoch time as the time since then: 5s, 12m, 3.4h, 2.1d."""
    if when is None:
        return None
    seconds = max(0.0, time.time() - when)
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f}h"
    return f"{seconds / 86400:.1f}d"


def share(part: int, whole: int) -> str | None:
    """A percentage; None where there is nothing to share."""
    return f"{100 * part / whole:.0f}%" if whole else None
