"""`heddle predictor`: train, eval, export, and what they say to input that does not fit."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heddle_core import WORD_BUCKETS
from heddle_planner.predictor import models
from heddle_planner.predictor.cli import app
from heddle_planner.predictor.evaluate import evaluate
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.protocol import Example
from heddle_planner.predictor.records import RecordedSet, load_set
from typer.testing import CliRunner

Made = Callable[..., Path]
SCORES = {
    "recall_top10",
    "recall_top5",
    "pearson",
    "spearman",
    "concordance",
    "mae",
    "calibration_slope",
    "coverage90",
}


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, agents: RecordedSet) -> Path:
    folder = tmp_path_factory.mktemp("model") / "dir"
    code, out, err = run("train", agents.path, "--model", "boosting", "--out", folder)
    assert code == 0, err
    assert "trained on 120 trajectories of agents" in out
    return folder


def test_a_set_that_was_never_seen_is_scored_whole_beside_the_baselines(
    trained: Path, made: Made, tmp_path: Path
) -> None:
    path = made("fresh.jsonl.gz", 20, 2, seed=5, prefix="fresh")
    out, plots = tmp_path / "scores.json", tmp_path / "plots"
    code, printed, err = run("eval", trained, path, "--json", out, "--plot", plots)
    assert code == 0, err
    assert "never seen" in printed
    body = json.loads(out.read_text())["fresh"]
    assert set(body) == {"boosting", "history", "prompt_only"}
    for parts in body.values():
        assert set(parts["after_step"]) == {"0", "1", "2", "4", "8"}
        assert set(parts["by_progress"]) == {str(tenth) for tenth in range(10)}
        for scores in (parts["overall"], *parts["after_step"].values()):
            assert set(scores) >= SCORES
    ours, history = body["boosting"], body["history"]
    assert ours["overall"]["rows"] == sum(len(one.steps) for one in load_set(path).trajectories)
    assert ours["after_step"]["2"]["concordance"] > 0.75
    assert ours["overall"]["mae"] < 0.8 * history["overall"]["mae"]
    assert ours["after_step"]["2"]["pearson"] > ours["after_step"]["0"]["pearson"]
    assert sorted(plot.name for plot in plots.iterdir()) == ["fresh-by-step.png", "fresh-reliability.png"]
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots.iterdir())


def test_a_set_that_was_trained_on_is_scored_by_task_folds(
    trained: Path, agents: RecordedSet, tmp_path: Path
) -> None:
    model = models.load(trained)
    held = evaluate(model, agents, folds=3)
    examples = make_examples(agents.trajectories, agents.tasks)
    folds = held["history"].fold
    by_task = {example.task: set() for example in examples}
    for example, fold in zip(examples, folds, strict=True):
        by_task[example.task].add(int(fold))
    assert all(len(found) == 1 for found in by_task.values())
    assert len(set(folds.tolist())) == 3
    # The model itself would know: what was said is not what it says.
    by_heart = model.predictor.predict([example.features for example in examples]).mean
    assert not np.allclose(held["boosting"].said.mean, by_heart)
    copy = tmp_path / "renamed.jsonl"
    copy.write_bytes(agents.path.read_bytes())
    assert model.has_seen(load_set(copy))


def test_siblings_that_have_not_finished_are_not_looked_at(
    trained: Path, written: Callable[..., Path], line: Callable[..., dict[str, Any]]
) -> None:
    def said(other: list[int]) -> list[float]:
        recorded = load_set(written("a.jsonl", [line("n", 0, [50] * 4), line("n", 1, other)]))
        examples: list[Example] = make_examples(recorded.trajectories, recorded.tasks)
        mine = [example.features for example in examples if example.trajectory == 0]
        return models.load(trained).predictor.predict(mine).mean.tolist()

    running = said([60] * 30)
    assert said([5_000] * 30) == running
    assert said([60]) != running


def test_a_model_is_replaced_but_nothing_else_is(trained: Path, made: Made, tmp_path: Path) -> None:
    path = made("b.jsonl", 6, 2)
    assert run("train", path, "--model", "history", "--out", tmp_path / "m")[0] == 0
    assert run("train", path, "--model", "prompt_only", "--out", tmp_path / "m")[0] == 0
    assert models.load(tmp_path / "m").predictor.name == "prompt_only"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, _, err = run("train", path, "--model", "history", "--out", tmp_path / "mine")
    assert code == 2
    assert "holds files that are no model" in err
    assert (tmp_path / "mine" / "thesis.txt").is_file()


def test_wrong_input_ends_with_2_and_names_it(trained: Path, made: Made, tmp_path: Path) -> None:
    good = made("good.jsonl", 6, 2, prefix="good")
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good.read_text().replace('"output_tokens": ', '"output_tokens": -', 1))
    for arguments, message in (
        (("train", bad, "--out", tmp_path / "m"), "bad.jsonl:1: steps[0]: output_tokens: must be in"),
        (
            ("train", good, "--model", "oracle", "--out", tmp_path / "m"),
            "model: 'oracle' is none of boosting",
        ),
        (("eval", tmp_path / "away", good), "model.json: cannot be read"),
        (("eval", trained, bad), "bad.jsonl:1:"),
        (("eval", trained, tmp_path / "no.jsonl"), "no.jsonl: cannot be read"),
        (("train", tmp_path / "x.text.jsonl.gz", "--out", tmp_path / "m"), "texts alone"),
        (("export", "--out", tmp_path / "o", "--from-history", "--database", tmp_path / "no.db"), "no.db"),
    ):
        code, _, err = run(*arguments)
        assert (code, message in err) == (2, True), (arguments, err)
    code, _, err = run("eval", trained, bad, "--lenient")
    assert code == 0
    assert "1 lines left out" in err


def test_one_trajectory_or_one_step_is_scored_as_far_as_it_can_be(
    trained: Path, written: Callable[..., Path], line: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = written("one.jsonl", [line("t", 0, [5])])
    assert run("eval", trained, path, "--json", tmp_path / "o.json")[0] == 0
    body = json.loads((tmp_path / "o.json").read_text())["one"]["boosting"]
    assert body["overall"]["rows"] == 1
    assert body["overall"]["concordance"] is None
    assert body["after_step"]["8"]["rows"] == 0


def test_the_packaged_model_predicts_without_any_training(examples: list[Example]) -> None:
    packaged = models.load()
    assert packaged.predictor.name == "boosting"
    assert {one.name for one in packaged.seen} == {"tau_airline", "vorflux", "cctraces"}
    said = packaged.predictor.predict([example.features for example in examples[:300]])
    assert np.isfinite(said.mean).all()
    assert (models.DEFAULT / "README.md").read_text().startswith("# ")
    # It read numbers and tool names: nothing of anybody's text is in it.
    _, of_late, so_far = np.split(np.load(models.DEFAULT / "wording.npy"), [1, 1 + WORD_BUCKETS])
    assert not of_late.any()
    assert 0 < np.count_nonzero(so_far) < 64


def a_history(path: Path) -> Path:
    """The columns of the gateway's tables that an export reads."""
    columns = (
        "id, trajectory_id, tenant, group_id, sample, model, step, outcome, finish_reason, tool_names,"
        " prompt_tokens, output_tokens, usage_known, arrived_at, dispatched_at, ended_at, gap_before_s"
    )
    rows = [
        (1, "a", "k", "g", 0, "m", 0, "done", "tool_calls", '["bash"]', 100, 10, 1, 50.0, 51.0, 52.0, None),
        (2, "a", "k", "g", 0, "m", 1, "aborted", None, "[]", 0, 0, 0, 55.0, None, 56.0, 3.0),
        (3, "a", "k", "g", 0, "m", 1, "done", "stop", "[]", 130, 20, 1, 57.0, 57.0, 58.5, 5.0),
        (4, "b", "k", "g", 1, "m", 0, "done", "stop", "[]", 100, 7, 1, 50.0, 50.0, 50.5, None),
        (5, "c", "k", None, None, None, 0, "rejected", None, "[]", 0, 0, 0, 50.0, None, 50.0, None),
    ]
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE steps ({columns})")
        database.executemany(f"INSERT INTO steps VALUES ({', '.join('?' * 17)})", rows)
        database.execute("CREATE TABLE trajectories (trajectory_id, tenant, end_reason)")
        database.execute("INSERT INTO trajectories VALUES ('a', 'k', 'finished'), ('b', 'k', NULL)")
    database.close()
    return path


def test_a_history_is_exported_in_the_format_that_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    database = a_history(tmp_path / "heddle.db")
    code, printed, err = run("export", "--from-history", "--out", out, "--database", database)
    assert code == 0, err
    assert "2 trajectories" in printed
    lines = [json.loads(text) for text in gzip.decompress(out.read_bytes()).splitlines()]
    assert lines[0]["steps"] == [
        {
            "input_new_tokens": 0,
            "output_tokens": 10,
            "tool": "bash",
            "tool_seconds": 5.0,
            "tool_error": None,
            "llm_seconds": 1.0,
            "stop": "tool_calls",
        },
        {
            "input_new_tokens": 20,
            "output_tokens": 20,
            "tool": None,
            "tool_seconds": None,
            "tool_error": None,
            "llm_seconds": 1.5,
            "stop": "stop",
        },
    ]
    first, second = load_set(out).trajectories
    assert (first.origin.prompt, first.finished, first.started_at) == ("k/g", True, 50.0)
    assert (second.origin.prompt, second.finished) == ("k/g", False)


def test_an_export_of_what_is_no_history_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    code, _, err = run("export", "--from-history", "--out", tmp_path / "o", "--database", tmp_path / "x.db")
    assert code == 2
    assert "cannot be read as a history" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db"]


def test_an_export_to_where_nothing_can_be_written_does_not_blame_the_history(tmp_path: Path) -> None:
    out = tmp_path / "absent" / "o"
    (tmp_path / "x.db").touch()
    code, _, err = run("export", "--from-history", "--out", out, "--database", tmp_path / "x.db")
    assert (code, err) == (2, f"--out {out}: No such file or directory\n")
