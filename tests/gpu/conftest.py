"""Two SGLang servers of unlike TP degree on a CUDA host: TP 1 on one GPU, TP 2 on two others.

    make test-gpu                              # under 8 minutes on three GPUs
    HEDDLE_GPU_PYTHON=/opt/sglang/bin/python   # the Python that has SGLang; by default the one of these tests
    HEDDLE_GPU_MODEL=/models/Qwen3-8B          # by default Qwen/Qwen3-0.6B

Elsewhere each test is listed as skipped, with the reason.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..real_sglang.workers import PAGE, SLOTS, Worker, stopping  # noqa: TID252

HERE = Path(__file__).parent
GPUS = 3
ASK_S = 60.0


def why_not() -> str | None:
    """What this machine lacks; None if it can run these tests."""
    if shutil.which("nvidia-smi") is None:
        return "no CUDA host: nvidia-smi is not installed"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=ASK_S, check=False)
    found = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    if found < GPUS:
        return f"{found} GPUs where TP 1 beside TP 2 needs {GPUS}"
    asked = subprocess.run([python(), "-c", "import sglang"], capture_output=True, timeout=ASK_S, check=False)
    if asked.returncode:
        return f"{python()} has no SGLang; HEDDLE_GPU_PYTHON names one that has"
    return None


def python() -> str:
    return os.environ.get("HEDDLE_GPU_PYTHON", sys.executable)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if HERE in item.path.parents]
    reason = why_not() if own else None
    for item in own:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


class GpuWorker(Worker):
    """SGLang as on any GPU host; HiCache with the layout whose heads re-shard by whole blocks."""

    def options(self) -> list[str]:
        model = os.environ.get("HEDDLE_GPU_MODEL", "Qwen/Qwen3-0.6B")
        return [
            *("--model-path", model, "--served-model-name", "tiny", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--max-running-requests", str(SLOTS), "--page-size", str(PAGE)),
            *("--max-total-tokens", "65536", "--hicache-ratio", "2"),
            *self.engine_options,
        ]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    folder = tmp_path_factory.mktemp("gpus")
    launcher = (python(), "-m", "sglang.launch_server")
    one, two = (
        GpuWorker(
            name,
            folder,
            folder,
            engine_options=("--tp-size", str(degree)),
            shim_options=("--store-bytes", "8G"),
            environment={"CUDA_VISIBLE_DEVICES": gpus},
            launcher=launcher,
        )
        for name, degree, gpus in (("tp1", 1, "0"), ("tp2", 2, "1,2"))
    )
    with stopping(one), stopping(two):
        for worker in (one, two):
            worker.start()
        for worker in (one, two):
            worker.ready()
        yield one, two


@pytest.fixture(scope="session")
def tp1(pair: tuple[Worker, Worker]) -> Worker:
    return pair[0]


@pytest.fixture(scope="session")
def tp2(pair: tuple[Worker, Worker]) -> Worker:
    return pair[1]
