"""What history appends to disk in one call each: rows of JSON, and the file that takes them."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_core import AppendFile, json_row
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text()  # without lone surrogates
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | st.sampled_from(list(Outcome)),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=20,
)


def as_lists(value: Any) -> Any:
    return [as_lists(item) for item in value] if isinstance(value, tuple) else value


@given(st.lists(VALUES, max_size=12).map(tuple))
def test_a_row_reads_as_what_it_was_made_of(values: tuple[Any, ...]) -> None:
    row = json_row(values)
    assert row is not None
    assert row.endswith(b"\n")
    assert len(row.splitlines()) == 1, "one line, whatever the texts hold"
    assert json.loads(row) == json.loads(json.dumps(values)) == as_lists(values)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, "\ud83d", 2**63, {"a": 1}, ["a"], b"a", object(), (1, (math.nan,))]
)
def test_what_has_no_plain_form_is_left_to_the_caller(value: Any) -> None:
    assert json_row(("before", value)) is None


def test_a_file_is_appended_to_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"old\n")
    os.chmod(path, 0o640)
    file = AppendFile(path)
    assert file.append(b"new\n") == 4
    other = AppendFile(path)
    assert other.append(b"newer\n") == 6
    assert file.append(b"half a li") == 9
    file.truncate(len(b"old\nnew\nnewer\n"))
    assert path.read_bytes() == b"old\nnew\nnewer\n"
    assert path.stat().st_mode & 0o777 == 0o640, "what is there keeps its mode"
    AppendFile(tmp_path / "made").close()
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0


def test_a_file_says_why_it_cannot(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*rows"):
        AppendFile(tmp_path / "nowhere" / "rows")
    with pytest.raises(OSError, match="No space left") as full:
        AppendFile("/dev/full").append(b"row\n")
    assert full.value.errno == errno.ENOSPC
    closed = AppendFile(tmp_path / "rows")
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.append(b"row\n")
