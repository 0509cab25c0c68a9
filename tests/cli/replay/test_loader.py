"""Records: what is read, and what is refused by name."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from heddle_cli.replay.filler_text import count_tokens, filler
from heddle_cli.replay.loader import SHIPPED, RecordError, load, load_shipped

STEP = {"input_new_tokens": 0, "output_tokens": 5, "tool": "bash", "tool_seconds": 1.5, "text": "ignored"}
RECORD: dict[str, Any] = {
    "id": "set/a",
    "task_id": "a",
    "sample": 2,
    "domain": "coding",
    "prompt_tokens0": 100,
    "steps": [
        STEP,
        STEP | {"input_new_tokens": 20, "output_tokens": 7},
        STEP | {"input_new_tokens": 3, "tool_seconds": None},
    ],
}


def write(path: Path, *records: Any) -> Path:
    text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_a_record_is_read_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    (trajectory,) = load(write(tmp_path / name, RECORD, ""))
    assert (trajectory.id, trajectory.task_id, trajectory.sample) == ("set/a", "a", 2)
    assert trajectory.output_tokens == 17
    assert [trajectory.context_before(step) for step in range(3)] == [100, 125, 135]
    assert [step.tool_seconds for step in trajectory.steps] == [1.5, 1.5, None]


def test_counts_below_what_a_message_can_have_are_raised(tmp_path: Path) -> None:
    odd = RECORD | {"steps": [STEP | {"output_tokens": 0, "input_new_tokens": -7}]}
    (trajectory,) = load(write(tmp_path / "r.jsonl", odd))
    assert (trajectory.steps[0].input_new_tokens, trajectory.steps[0].output_tokens) == (0, 1)


def test_a_trajectory_is_cut_by_steps_and_by_context(tmp_path: Path) -> None:
    (trajectory,) = load(write(tmp_path / "r.jsonl", RECORD))
    assert len(trajectory.cut(max_steps=2).steps) == 2
    assert len(trajectory.cut(max_context=132).steps) == 2
    assert len(trajectory.cut(max_context=131).steps) == 1
    assert trajectory.cut() == trajectory


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "r.jsonl:2"),
        ("[]", "must be a JSON object"),
        (RECORD | {"id": 5}, "id must be a string"),
        (RECORD | {"prompt_tokens0": 0}, "prompt_tokens0 must be at least 1"),
        (RECORD | {"steps": []}, "steps must be a list of at least one"),
        (RECORD | {"steps": [STEP, 5]}, "steps\\[1\\]: must be a JSON object"),
        (
            RECORD | {"steps": [STEP | {"output_tokens": 1.5}]},
            "steps\\[0\\]: output_tokens must be an integer",
        ),
        (RECORD | {"steps": [STEP | {"tool_seconds": "1"}]}, "tool_seconds must be a number or null"),
    ],
)
def test_a_line_that_is_no_trajectory_is_refused_by_place(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        load(write(tmp_path / "r.jsonl", RECORD, record))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:-20])
    (tmp_path / "no.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "empty.jsonl").write_text("\n")
    for name in ("absent.jsonl", "torn.jsonl.gz", "no.jsonl.gz", "empty.jsonl"):
        with pytest.raises(RecordError, match=name):
            load(tmp_path / name)


def test_the_shipped_records_can_be_read() -> None:
    counts = {name: len(load_shipped(name)) for name in SHIPPED}
    assert counts == {"vorflux": 167, "tau_airline": 100}
    with pytest.raises(RecordError, match="vorflux"):
        load_shipped("absent")


def test_filler_has_as_many_tokens_as_words_and_is_the_same_for_a_seed() -> None:
    text = filler("seed", 500)
    assert count_tokens(text) == len(text.split(" ")) == 500
    assert filler("seed", 500) == text != filler("other", 500)
    assert filler("seed", 0) == filler("seed", -3) == ""
    assert count_tokens('{"a": "Word 1234"}') == 12
