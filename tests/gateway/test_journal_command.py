"""`heddle journal`: what a journal says, and what it is when a process was killed over it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from heddle_core import Core, replay
from heddle_gateway.journal_cli import app
from typer.testing import CliRunner


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A worker comes, and two seconds later its load is told."""
    head = Core(None, journal=True).take_journal().splitlines()[0]
    up: dict[str, Any] = {"worker": 1, "generation": 1, "degree": 2, "slots": 8, "kv_tokens": 9000}
    up |= {"has_priority": True, "profile": None, "weights": 0}
    load = {"worker": 1, "generation": 1, "running": 0, "waiting": 0, "kv_used": 0}
    events = [
        {"now": 1_000_000, "event": {"worker_up": up}},
        {"now": 2_000_000, "event": {"load_report": load}},
        {"now": 3_000_000, "event": {"load_report": load}},
    ]
    path = tmp_path / "run.journal"
    path.write_bytes(b"\n".join([head, *(json.dumps(one).encode() for one in events), b""]))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_it_says_what_came_and_the_digest_of_what_was_decided(journal: Path) -> None:
    said = run(journal).output
    assert "3 in 2.0 s: 2 load_report, 1 worker_up" in said
    assert replay(journal.read_bytes())["digest"] in said
    found = json.loads(run(journal, "--json").output)
    assert (found["kinds"], found["seconds"], found["torn"]) == (
        {"load_report": 2, "worker_up": 1},
        2.0,
        False,
    )
    assert found["stats"] == replay(journal.read_bytes())["stats"]


def test_a_last_line_that_is_not_whole_is_left_out_and_said(journal: Path) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"now":4000000,"eve')
    done = run(journal)
    assert done.exit_code == 0
    assert "The last line is not whole" in done.output
    assert replay(whole)["digest"] in done.output


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (b"", [], "journal line 1: the journal is empty"),
        (b"{}\n", [], "journal line 1: "),
        (None, ["--policy", '{"placement": "x"}'], "placement: unknown variant `x`"),
        (None, ["--policy", "{"], "EOF"),
    ],
)
def test_what_cannot_be_replayed_is_wrong_usage(
    journal: Path, text: bytes | None, options: list[str], said: str
) -> None:
    if text is not None:
        journal.write_bytes(text)
    done = run(journal, *options)
    assert done.exit_code == 2
    assert f"heddle journal: {journal}: " in done.output
    assert said in done.output


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "none")
    assert done.exit_code == 2
    assert done.output == f"heddle journal: {tmp_path / 'none'}: No such file or directory\n"
