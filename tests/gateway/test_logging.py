"""Log lines: JSON for programs, plain ones for a person at a terminal."""

import json
import logging
import sys

import pytest
from heddle_gateway.serving import JsonLines, PlainLines

EVIL = 'a "name"\n\x1b[2Jforged line'


def record(exception: bool = False) -> logging.LogRecord:
    return logging.LogRecord(
        "heddle", logging.WARNING, __file__, 1, "got %s", (EVIL,), sys.exc_info() if exception else None
    )


def test_a_json_line_is_one_line_that_holds_the_message() -> None:
    (line,) = JsonLines().format(record()).splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("warning", "heddle", f"got {EVIL}")


def test_a_plain_line_cannot_be_steered_by_what_a_client_sent() -> None:
    line = PlainLines().format(record())
    assert line.endswith(r'warning got a "name"\n\x1b[2Jforged line')
    assert line.isprintable()


def test_a_plain_line_is_followed_by_its_traceback() -> None:
    try:
        pytest.fail("no such thing")
    except pytest.fail.Exception:
        lines = PlainLines().format(record(exception=True)).splitlines()
    assert lines[1].startswith("Traceback")
    assert "no such thing" in lines[-1]
