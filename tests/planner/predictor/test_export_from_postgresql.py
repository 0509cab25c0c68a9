"""`heddle predictor export --from-history`: what a gateway wrote into either database gives the same file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.admin import EndReason
from heddle_contracts.history import EndedTrajectory
from heddle_contracts.steps import Outcome, StepRecord
from heddle_gateway.store.engine import open_engine
from heddle_gateway.store.step_writer import StepWriter
from heddle_planner.predictor.cli import app
from heddle_planner.predictor.records import load_set
from typer.testing import CliRunner

pytestmark = pytest.mark.services

TRAJECTORIES, STEPS = 90, 25
"""More rows than one fetch brings."""


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["export", "--from-history", *(str(argument) for argument in arguments)])
    return result.exit_code, result.stdout, result.stderr


def step(trajectory: int, number: int) -> StepRecord:
    at = 1_000.0 + 10 * number
    return StepRecord(
        # Ids that databases order unlike unless they are told how.
        trajectory_id=f"{'aBé_'[trajectory % 4]}{trajectory}",
        tenant="K"[: trajectory % 2],
        group_id=f"g{trajectory // 8}",
        sample=trajectory % 8,
        source="header",
        model="m",
        dialect="chat",
        step=number,
        outcome=Outcome.ABORTED if number == 3 else Outcome.DONE,
        finish_reason="stop" if number == STEPS - 1 else "tool_calls",
        tool_names=("bash", "édit")[: number % 3],
        prompt_tokens=100 + 30 * number,
        output_tokens=7 + trajectory,
        usage_known=True,
        arrived_at=at,
        dispatched_at=at + 0.25,
        ended_at=at + 5,
        gap_before_s=2.5 if number else None,
    )


async def fill(location: str) -> None:
    engine = open_engine(location)
    steps = [step(trajectory, number) for number in range(STEPS) for trajectory in range(TRAJECTORIES)]
    ends = [EndedTrajectory("", f"a{number}", EndReason.FINISHED, 5_000.0) for number in range(0, 40, 4)]
    assert await StepWriter(engine).write(steps, ends) == "written"
    await engine.dispose()


def test_both_databases_give_the_same_file(postgresql: Any, tmp_path: Path) -> None:
    files = []
    for name, location in (("sqlite", str(tmp_path / "heddle.db")), ("pg", postgresql.new_database())):
        asyncio.run(fill(location))
        files.append(tmp_path / f"{name}.jsonl")
        code, printed, err = run("--out", files[-1], "--database", location)
        assert code == 0, err
        assert f"{TRAJECTORIES} trajectories" in printed
    assert files[0].read_bytes() == files[1].read_bytes()
    lines = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert all(len(line["steps"]) == STEPS - 1 for line in lines), "the aborted step is left out"
    assert sum(line["finished"] for line in lines) == 10
    assert len(load_set(files[1]).trajectories) == TRAJECTORIES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("test_", "no_such_"), "no_such_"),
        (("heddle@", "nobody@"), "nobody"),
        (("127.0.0.1:", "127.0.0.1:1"), "cannot be read as a history"),
    ],
)
def test_a_database_that_cannot_be_read_is_named_and_leaves_no_file(
    postgresql: Any, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    location = postgresql.new_database().replace(*change)
    code, _, err = run("--out", tmp_path / "out.jsonl", "--database", location)
    assert code == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_no_history(postgresql: Any, tmp_path: Path) -> None:
    code, _, err = run("--out", tmp_path / "out.jsonl", "--database", postgresql.new_database())
    assert code == 2
    assert "steps" in err
    assert list(tmp_path.iterdir()) == []
