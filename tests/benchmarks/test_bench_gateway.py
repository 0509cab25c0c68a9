"""`heddle bench gateway` as its users run it, in short."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def bench(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heddle_cli", "bench", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | (env or {}),
    )


def test_a_short_run_measures_both_arms_and_accounts_for_every_step(tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.json"
    short = ("--rounds", "1", "--seconds", "0.6", "--connections", "8", "--stream-chunks", "20")
    done = bench("--json", str(path), *short)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    state = report["gateway_state"]
    answered = sum(
        item["load"]["whole_requests"] for item in report["measurements"] if item["arm"] == "heddle"
    )
    assert state["steps_done"] == answered + 1
    # One record a step, and one for each trajectory that ended meanwhile.
    assert state["history_written"] + state["history_lost"] >= state["steps_done"]
    rates = report["figures"]["requests_per_s"]
    assert 0 < rates["heddle"]["median"] < rates["direct"]["median"]
    assert report["added_p50_ms"]["heddle"]["median"] > 0
    assert report["peak_mib"]["heddle"] > 20
    assert "requests/s" in done.stdout


def test_an_unknown_peer_is_a_usage_error() -> None:
    done = bench("--peer", "nginx")
    assert done.returncode == 2
    assert "sglang-router" in done.stderr


def test_without_the_load_generator_the_way_to_build_it_is_told(tmp_path: Path) -> None:
    done = bench(env={"HEDDLE_LOADGEN": str(tmp_path / "gone")})
    assert done.returncode == 1
    assert "HEDDLE_LOADGEN" in done.stderr
