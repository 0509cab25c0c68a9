"""Workloads: drawn from records by whole tasks, or made up with the shape that a domain has."""

import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_planner.simulate.domains import DOMAINS, MOST_OUTPUT, make_scripts
from heddle_planner.simulate.records import RecordError, draw_scripts, load_records
from heddle_planner.simulate.scripts import Script, Turn, cut_all


def record(
    task: str, sample: int, outputs: Sequence[int], tool: str = "bash", seconds: float | None = 1.5
) -> str:
    steps = [
        {"input_new_tokens": 10 * index, "output_tokens": output, "tool": tool, "tool_seconds": seconds}
        for index, output in enumerate(outputs)
    ]
    return json.dumps({"task_id": task, "sample": sample, "prompt_tokens0": 100, "steps": steps})


def write(path: Path, lines: Sequence[str]) -> Path:
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def draw(path: Path, **changes: Any) -> list[Script]:
    settings: dict[str, Any] = {"trajectories": 8, "group_size": None, "scale_output": 1.0, "seed": 3}
    return draw_scripts(load_records(path), **(settings | changes))


def test_tasks_are_drawn_whole_and_each_before_any_again(tmp_path: Path) -> None:
    lines = [
        record(f"t{task}", sample, [100 * task + sample + 1]) for task in range(3) for sample in range(2)
    ]
    scripts = draw(write(tmp_path / "r.jsonl.gz", lines), trajectories=12)
    assert [script.group for script in scripts] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for epoch in (scripts[:6], scripts[6:]):
        assert sorted(script.output for script in epoch) == [1, 2, 101, 102, 201, 202]


def test_samples_made_up_beyond_the_recorded_ones_differ_but_keep_the_mean(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [record("t", 0, [10_000])])
    scripts = draw(path, trajectories=4000, group_size=4000)
    lengths = [script.output for script in scripts]
    assert lengths[0] == 10_000
    assert statistics.mean(lengths) == pytest.approx(10_000, rel=0.05)
    assert len(set(lengths)) > 1000


def test_outputs_are_scaled_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [record("t", 0, [40, 1, 7])])
    [script] = draw(path, trajectories=1, scale_output=2.5)
    assert [turn.output for turn in script.turns] == [100, 2, 18]
    assert [turn.input for turn in script.turns] == [0, 10, 20]
    assert script.tool_seconds == 3.0


def test_a_person_thinking_is_not_a_tool(tmp_path: Path) -> None:
    lines = [record("a", 0, [5, 5], tool="user", seconds=900.0), record("b", 0, [5, 5], seconds=2.0)]
    scripts = draw(write(tmp_path / "r.jsonl", lines), trajectories=2)
    assert {turn.tool_seconds for script in scripts for turn in script.turns} == {2.0}


def test_unrecorded_tool_times_are_drawn_and_mostly_short(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [record("a", 0, [5] * 2000, seconds=None)])
    [script] = draw(path, trajectories=1)
    seconds = [turn.tool_seconds for turn in script.turns]
    assert statistics.median(seconds) == pytest.approx(0.5, rel=0.15)
    assert max(seconds) > 3.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"steps": [{}]}', "task_id"),
        ('{"task_id": "t", "prompt_tokens0": 0, "steps": [{}]}', "prompt_tokens0"),
        ('{"task_id": "t", "prompt_tokens0": 5, "steps": []}', "steps"),
        (
            '{"task_id": "t", "prompt_tokens0": 5, "steps": [{"input_new_tokens": 0}]}',
            "steps[0]: output_tokens",
        ),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_field(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path / "r.jsonl", [record("t", 0, [1]), line])
    with pytest.raises(RecordError) as caught:
        load_records(path)
    assert f"{path}:2" in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="gone"):
        load_records(tmp_path / "gone.jsonl")
    with pytest.raises(RecordError, match="holds no trajectory"):
        load_records(write(tmp_path / "empty.jsonl", [""]))


def test_scripts_are_cut_where_the_context_ends() -> None:
    script = Script(prompt=100, turns=(Turn(0, 50, 1.0), Turn(30, 20, 1.0), Turn(10, 400, 1.0)))
    assert script.context == 610
    cut = cut_all([script, Script(prompt=300, turns=(Turn(0, 1, 0.0),))], 200)
    assert [one.context for one in cut.scripts] == [200]
    assert (cut.shortened, cut.dropped) == (1, 1)
    assert cut_all([script], 610).scripts == [script]


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_has_a_heavy_tail_and_siblings_that_are_alike_but_not_equal(name: str) -> None:
    scripts = make_scripts(DOMAINS[name], trajectories=1600, group_size=16, scale_output=1.0, seed=1)
    again = make_scripts(DOMAINS[name], trajectories=1600, group_size=16, scale_output=1.0, seed=1)
    other = make_scripts(DOMAINS[name], trajectories=1600, group_size=16, scale_output=1.0, seed=2)
    assert scripts == again
    assert scripts != other
    lengths = sorted(script.output for script in scripts)
    steps = max(len(script.turns) for script in scripts)
    assert lengths[-1] <= MOST_OUTPUT + steps, "rounding adds at most a token a step"
    assert lengths[-1] > 4 * lengths[800], "the longest is several times the median"
    groups: dict[int | None, list[Script]] = {}
    for script in scripts:
        groups.setdefault(script.group, []).append(script)
    assert {len(group) for group in groups.values()} == {16}
    assert all(len({script.prompt for script in group}) == 1 for group in groups.values())
    means = [statistics.mean(script.output for script in group) for group in groups.values()]
    within = statistics.mean(statistics.stdev(script.output for script in group) for group in groups.values())
    assert statistics.stdev(means) > 0.5 * within
    assert all(len({script.output for script in group}) > 8 for group in groups.values())
