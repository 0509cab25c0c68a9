"""docs/KNOWN_FAULTS.md names a test for each known fault, and every test it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "KNOWN_FAULTS.md").read_text()
FAULTS = 58


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/.]+\.(?:py|rs))::(\w+)`", PAGE)
    assert len(named) > FAULTS
    for path, name in named:
        assert re.search(rf"\b(?:def|fn) {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"


def test_no_fault_is_left_out_and_none_is_without_a_test() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \|.*\|$", PAGE, re.MULTILINE)
    numbers = [int(number) for row in rows for number in row.split(",")]
    assert sorted(numbers) == list(range(1, FAULTS + 1))
    for line in PAGE.splitlines():
        if re.match(r"\| [0-9]", line):
            assert "::" in line, line
