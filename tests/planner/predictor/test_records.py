"""Recorded trajectories: what is read, and what is said of what cannot be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heddle_planner.predictor.records import DataError, is_text_file, load_set, set_name

Write = Callable[..., Path]
Line = Callable[..., dict[str, Any]]


def test_what_a_tool_did_is_known_at_the_step_after_it(written: Write, line: Line) -> None:
    one = line("t", 0, [10, 20, 30])
    one["steps"][0] |= {"tool_seconds": 7.0, "tool_error": True, "obs_text": "boom", "text": "try"}
    steps = load_set(written("a.jsonl", [one])).trajectories[0].steps
    assert (steps[0].gap_before_s, steps[0].error_before, steps[0].observation) == (None, None, None)
    assert (steps[1].gap_before_s, steps[1].error_before, steps[1].observation) == (7.0, True, "boom")
    assert [step.text for step in steps] == ["try", None, None]


def test_full_texts_beside_a_file_replace_its_excerpts(written: Write, line: Line) -> None:
    one = line("t", 0, [10, 20])
    one["steps"][0]["text"] = "exc"
    written(
        "a.text.jsonl.gz",
        [
            {
                "id": "t/0",
                "prompt": [{"role": "system", "content": "be good"}, {"role": "user", "content": "fix it"}],
                "steps": [{"text": "excerpt in full", "obs": "seen"}, {"text": None, "obs": None}],
            }
        ],
    )
    path = written("a.jsonl.gz", [one])
    read = load_set(path).trajectories[0]
    assert read.origin.prompt_text == "fix it"
    assert read.steps[0].text == "excerpt in full"
    assert read.steps[1].observation == "seen"
    bare = load_set(path, texts=False).trajectories[0]
    assert bare.origin.prompt_text is None
    assert bare.steps[0].text is None
    assert bare.steps[1].observation is None
    assert is_text_file(path.with_name("a.text.jsonl.gz"))
    assert not is_text_file(path)
    assert set_name(path) == "a"


def step(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda one: one["steps"][1].update(change)


def whole(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda one: one.update(change)


WRONG = [
    (step(output_tokens=-1), r"steps\[1\]: output_tokens: must be in 0\.\.\d+ tokens, not -1"),
    (step(output_tokens=10**12), r"steps\[1\]: output_tokens: must be in"),
    (step(output_tokens=1.5), r"steps\[1\]: output_tokens: must be an integer, not 1\.5"),
    (step(output_tokens=True), r"steps\[1\]: output_tokens: must be an integer, not True"),
    (step(output_tokens=float("nan")), r"steps\[1\]: output_tokens: must be an integer, not nan"),
    (step(input_new_tokens="9"), r"steps\[1\]: input_new_tokens: must be an integer, not '9'"),
    (step(tool_seconds=float("nan")), r"steps\[1\]: tool_seconds: must be in 0\.\..* seconds, not nan"),
    (step(tool_seconds=10**400), r"steps\[1\]: tool_seconds: must be in"),
    (step(llm_seconds=-3), r"steps\[1\]: llm_seconds: must be in"),
    (step(tool_error="no"), r"steps\[1\]: tool_error: must be true, false or null, not 'no'"),
    (step(tool=7), r"steps\[1\]: tool: must be a string or null, not 7"),
    (step(text=[1]), r"steps\[1\]: text: must be a string or null"),
    (whole(steps=10**9), r"steps: must be a list of at least one step, not 1000000000"),
    (whole(steps=[]), r"steps: must be a list of at least one step"),
    (whole(steps=[3]), r"steps\[0\]: must be a JSON object, not 3"),
    (whole(schema_version=2), r"schema_version: 2 is not 1"),
    (whole(task_id=None), r"task_id: must be a string that is not empty, not None"),
    (whole(prompt_tokens0=-5), r"prompt_tokens0: must be in"),
    (whole(sample="x"), r"sample: must be an integer or null"),
    (whole(finished=1), r"finished: must be true or false"),
    (whole(started_at=float("inf")), r"started_at: must be in"),
    (whole(domain="d" * 5000), r"domain: is longer than"),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_field_is_named_with_file_and_line(
    written: Write, line: Line, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    good, bad = line("t", 0, [1, 2]), line("t", 1, [1, 2])
    spoil(bad)
    path = written("a.jsonl", [good, bad])
    with pytest.raises(DataError, match=rf"a\.jsonl:2: {message}"):
        load_set(path)
    lenient = load_set(path, lenient=True)
    assert (len(lenient.trajectories), lenient.skipped) == (1, 1)
    assert "a.jsonl:2" in lenient.problems[0]


@pytest.mark.parametrize("text", ["{", "[]", "7", "null", '"x"', "[" * 100_000])
def test_a_line_that_is_no_object_is_named(written: Write, line: Line, text: str) -> None:
    path = written("a.jsonl", [json.dumps(line("t", 0, [1])), text])
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        load_set(path)
    assert load_set(path, lenient=True).skipped == 1


def test_a_file_that_is_away_broken_or_empty_is_named(tmp_path: Path, written: Write, line: Line) -> None:
    with pytest.raises(DataError, match=r"away\.jsonl: cannot be read"):
        load_set(tmp_path / "away.jsonl")
    whole_file = written("b.jsonl.gz", [line("t", 0, [1] * 200)]).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(whole_file[: len(whole_file) // 2])
    with pytest.raises(DataError, match=r"b\.jsonl\.gz: cannot be read"):
        load_set(tmp_path / "b.jsonl.gz")
    with pytest.raises(DataError, match="holds no trajectory"):
        load_set(written("c.jsonl", []), lenient=True)
    with pytest.raises(DataError, match=r"holds no trajectory; the first of 1 skipped: .*c\.jsonl:1"):
        load_set(written("c.jsonl", ["{"]), lenient=True)


def test_an_id_twice_names_both_lines(written: Write, line: Line) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:2: id: 't/0' is that of line 1 too"):
        load_set(written("a.jsonl", [line("t", 0, [1]), line("t", 0, [2])]))
