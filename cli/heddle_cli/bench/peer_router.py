"""sglang-router from the package index, in a virtual environment of its own: it cannot disturb ours."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from heddle_cli.bench.errors import BenchError

NAME = "sglang-router"
VERSION = "0.3.2"
# Written when the installation is complete; a folder without it is left over from one that was cut off.
_COMPLETE = ".complete"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Folder of this version for this Python; another pin or another Python gets another folder."""
    base = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/tmp")) / ".cache")
    return base / "heddle" / "bench" / f"{NAME}-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"


def ensure_installed(environ: Mapping[str, str] | None = None) -> Path:
    """The Python that has sglang-router; installs it on first use, which needs the package index.

    Raises BenchError with pip's own words when that fails.
    """
    folder = cache_folder(os.environ if environ is None else environ)
    python = folder / "bin" / "python"
    if (folder / _COMPLETE).exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{NAME}=={VERSION}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(
                f"{NAME} {VERSION} could not be installed: {(done.stderr or done.stdout).strip()}"
            )
    (folder / _COMPLETE).touch()
    return python


def command(python: Path, *, port: int, metrics_port: int, worker_url: str) -> list[str]:
    """As its documentation starts it, but without a log line per request: ours writes none either."""
    return [
        *(str(python), "-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)),
        *("--worker-urls", worker_url, "--policy", "cache_aware", "--log-level", "warn"),
    ]
