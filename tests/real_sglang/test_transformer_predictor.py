"""The transformer predictor, fine-tuned for real on a small random Qwen3 in the engine's environment.

It is here because that environment has torch and transformers; no engine runs.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from .workers import ROOT

SCRIPT = Path(__file__).parent / "tune_tiny_transformer.py"
LIMIT_S = 600.0


def test_a_random_qwen3_learns_to_read_how_much_is_left(venv: Path, tmp_path: Path) -> None:
    path = os.pathsep.join(str(ROOT / part) for part in ("planner", "contracts", "router_rs/python"))
    done = subprocess.run(
        [venv / "bin/python", SCRIPT, tmp_path],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # The first three epochs came from the checkpoint of the fit before.
    assert found["losses"][:3] == pytest.approx(found["first_losses"])
    assert len(found["losses"]) == 5
    assert found["losses"][-1] < found["losses"][0] - 0.2
    assert found["long"] > 5 * found["short"]
    assert found["inside"] > 0.7
    assert found["same"]
    assert not [name for name in found["files"] if name.endswith((".bin", ".pkl", ".pt", ".pickle"))]
    assert "transformer.json: cannot be read" in found["refusal"]
    assert found["cut"] == [0, 1, 6, 7, 8, 9]
