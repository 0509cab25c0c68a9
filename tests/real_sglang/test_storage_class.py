"""The HiCache class in SGLang's own Python, without an engine."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .workers import ROOT

HERE = Path(__file__).parent


def ranks(venv: Path, folder: Path, split_by: str, size: int) -> list[dict[str, Any]]:
    """What two ranks of an engine find; then what one does after it cleared its storage."""
    done = subprocess.run(
        [venv / "bin/python", HERE / "split_pages.py", folder, split_by, str(size)],
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
    found, _ = ranks(venv, tmp_path, split_by, 2)
    assert found == {"stored": False, "exists": False, "found": False}


def test_a_storage_that_was_cleared_takes_pages_again(venv: Path, tmp_path: Path) -> None:
    found, cleared = ranks(venv, tmp_path, "pp_size", 1)
    assert found == {"stored": True, "exists": True, "found": True}
    assert cleared == {"gone": True, "stored": True, "exists": True}
