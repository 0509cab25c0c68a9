"""The HiCache class in SGLang's own Python, without an engine."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .workers import ROOT

HERE = Path(__file__).parent


def said(venv: Path, script: str, *arguments: Path | str) -> list[dict[str, Any]]:
    """What a script says that SGLang's Python runs."""
    done = subprocess.run(
        [venv / "bin/python", HERE / script, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'worker_shim'}:{ROOT / 'contracts'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("split_by", ["pp_size", "attn_cp_size"])
def test_a_rank_never_reads_what_another_stage_or_context_rank_stored(
    split_by: str, venv: Path, tmp_path: Path
) -> None:
    found, _ = said(venv, "split_pages.py", tmp_path, split_by, "2")
    assert found == {"stored": False, "exists": False, "found": False}


def test_a_storage_that_was_cleared_takes_pages_again(venv: Path, tmp_path: Path) -> None:
    found, cleared = said(venv, "split_pages.py", tmp_path, "pp_size", "1")
    assert found == {"stored": True, "exists": True, "found": True}
    assert cleared == {"gone": True, "stored": True, "exists": True}


def test_a_full_store_keeps_the_start_of_what_is_in_use_and_drops_the_end_of_what_is_not(
    venv: Path, tmp_path: Path
) -> None:
    """A trajectory's first pages are its oldest, and without them the others are worth nothing."""
    [left] = said(venv, "full_store.py", tmp_path)
    assert left["long"] == 5
    assert 0 < left["idle"] < 4
