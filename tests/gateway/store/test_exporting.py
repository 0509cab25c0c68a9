"""`heddle history export`: rows for a spreadsheet or a script."""

import asyncio
import csv
import json
import time
from pathlib import Path

import pytest
from click.testing import Result
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.history_cli import app
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from typer.testing import CliRunner

HOUR_S = 3_600.0


def step(trajectory_id: str, number: int, at: float, **more: object) -> StepRecord:
    fields: dict[str, object] = {
        "trajectory_id": trajectory_id,
        "tenant": "t",
        "source": "header",
        "dialect": "chat",
        "model": "m",
        "step": number,
        "outcome": Outcome.DONE,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "arrived_at": at,
        "dispatched_at": at + 0.5,
        "ended_at": at + 2.0,
        "gap_before_s": 1.5 if number else None,
    }
    return StepRecord.model_validate(fields | more)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two trajectories of two steps: "old,1" of group g three hours ago, "new" just now."""
    now = time.time()
    old, new = now - 3 * HOUR_S, now - 10.0
    database = tmp_path / "history.db"

    async def fill() -> None:
        engine = open_engine(str(database))
        records = [
            step("new", 0, new),
            step("new", 1, new + 3.5, outcome=Outcome.ABORTED, tool_names=("bash", "edit")),
            step("old,1", 0, old, group_id="g"),
            step("old,1", 1, old + 3.5, group_id="g"),
        ]
        assert await StepWriter(engine).write(records, []) == "written"
        await engine.dispose()

    asyncio.run(fill())
    return database


def export(history: Path, out: Path, *options: str) -> Result:
    command = ["export", "--database", str(history), "--out", str(out), *options]
    return CliRunner().invoke(app, command)


def test_a_row_a_trajectory_with_what_it_cost_and_how_long_it_took(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    done = export(history, out)
    assert done.output == f"{out}: 2 trajectories\n"
    with out.open(newline="") as file:
        old, new = csv.DictReader(file)
    assert (old["trajectory_id"], old["group_id"], new["trajectory_id"]) == ("old,1", "g", "new")
    counts = (new["steps"], new["done"], new["aborted"], new["prompt_tokens"], new["output_tokens"])
    assert counts == ("2", "1", "1", "200", "20")
    times = (new["step_seconds"], new["waited_seconds"], new["gap_seconds"])
    assert [float(one) for one in times] == pytest.approx([4.0, 1.0, 1.5], abs=1e-3)
    assert float(new["last_seen"]) - float(new["first_seen"]) == pytest.approx(5.5, abs=1e-3)


def test_a_row_a_step(history: Path, tmp_path: Path) -> None:
    lines = tmp_path / "steps.jsonl"
    assert export(history, lines, "--steps").output == f"{lines}: 4 steps\n"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["trajectory_id"], row["step"]) for row in rows] == [
        ("old,1", 0),
        ("old,1", 1),
        ("new", 0),
        ("new", 1),
    ]
    assert rows[3]["tool_names"] == ["bash", "edit"]
    table = tmp_path / "steps.csv"
    assert export(history, table, "--steps").exit_code == 0
    with table.open(newline="") as file:
        assert [row["tool_names"] for row in csv.DictReader(file)] == ["", "", "", "bash edit"]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--since", "1h"], ["new"]),
        (["--prefix", "old"], ["old,1"]),
        (["--group", "g"], ["old,1"]),
        (["--model", "other"], []),
    ],
)
def test_what_is_written_can_be_narrowed(
    history: Path, tmp_path: Path, options: list[str], ids: list[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    assert export(history, out, *options).exit_code == 0
    assert [json.loads(line)["trajectory_id"] for line in out.read_text().splitlines()] == ids


@pytest.mark.parametrize(
    ("out", "options", "said"),
    [
        ("runs.xlsx", [], "ends neither in .csv nor in .jsonl"),
        ("no/folder/runs.csv", [], "no/folder/runs.csv: No such file or directory"),
        ("runs.csv", ["--since", "soon"], "--since: 'soon' is not a duration"),
    ],
)
def test_what_cannot_be_is_wrong_usage_and_leaves_no_file(
    history: Path, tmp_path: Path, out: str, options: list[str], said: str
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    done = export(history, tmp_path / out, *options)
    assert done.exit_code == 2
    assert said in done.output
    assert not {path.name for path in tmp_path.iterdir()} - before - {"history.db-wal", "history.db-shm"}
