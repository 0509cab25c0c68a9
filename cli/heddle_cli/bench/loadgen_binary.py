"""The compiled load generator: where it is found, and one measurement by it."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle_cli.bench.errors import BenchError

NAME = "heddle-loadgen"
# Beyond the measured time: warm-up, requests in flight at the end, a slow machine.
_GRACE_S = 60.0


def find(environ: dict[str, str] | None = None, clone: Path | None = None) -> Path:
    """Path of the binary: `$HEDDLE_LOADGEN`, then `PATH`, then the build folder of this clone.

    Raises BenchError where there is none.
    """
    environ = dict(os.environ) if environ is None else environ
    clone = Path(__file__).parents[3] if clone is None else clone
    if named := environ.get("HEDDLE_LOADGEN"):
        if not os.access(named, os.X_OK):
            raise BenchError(f"HEDDLE_LOADGEN={named} is no executable file.")
        return Path(named)
    if on_path := shutil.which(NAME, path=environ.get("PATH", "")):
        return Path(on_path)
    built = clone / "router_rs/target/release" / NAME
    if os.access(built, os.X_OK):
        return built
    raise BenchError(
        f"{NAME} was not found in $HEDDLE_LOADGEN, PATH or {built}. "
        "Build it with `make bench-tools` in a clone of Heddle."
    )


def version(binary: Path) -> str:
    """What the binary says it is."""
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One measurement. Times are milliseconds; rates are per second of the measured time."""

    requests: int
    requests_per_s: float
    chunks_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    first_byte_p50_ms: float
    first_byte_p99_ms: float
    whole_requests: int
    whole_chunks: int
    conversations: int
    reconnects: int

    @classmethod
    def from_report(cls, report: dict[str, Any]) -> "LoadFigures":
        """From the load generator's JSON, whose times are microseconds."""
        latency, first, whole = report["latency_us"], report["first_byte_us"], report["whole_run"]
        return cls(
            requests=report["requests"],
            requests_per_s=report["requests_per_s"],
            chunks_per_s=report["events_per_s"],
            p50_ms=latency["p50"] / 1000,
            p90_ms=latency["p90"] / 1000,
            p99_ms=latency["p99"] / 1000,
            max_ms=latency["max"] / 1000,
            first_byte_p50_ms=first["p50"] / 1000,
            first_byte_p99_ms=first["p99"] / 1000,
            whole_requests=whole["requests"],
            whole_chunks=whole["events"],
            conversations=whole["conversations"],
            reconnects=report["reconnects"],
        )


def measure(
    binary: Path,
    url: str,
    body: Path,
    *,
    connections: int,
    seconds: float,
    warmup_s: float,
    tokens: int,
    step_header: str | None,
) -> LoadFigures:
    """Runs agents against `url` (scheme, host and port) for `seconds`.

    `tokens`: length of the engine's answers. `step_header`: answer header that must hold the step's index.
    Raises BenchError when a single request failed, was cut, or had another answer than the engine's.
    """
    command: list[str | Path] = [
        *(binary, "load", "--json", "--vary", "--url", f"{url}/v1/chat/completions", "--body", body),
        *("--connections", str(connections), "--duration", str(seconds)),
        *("--warmup", str(warmup_s), "--tokens", str(tokens)),
    ]
    if step_header is not None:
        command += ["--step-header", step_header]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warmup_s + _GRACE_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"The load on {url} did not end: {error}") from error
    if done.returncode != 0:
        raise BenchError(f"The load on {url} failed: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["errors"]:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in report["error_kinds"].items())
        raise BenchError(f"{report['errors']} requests to {url} failed: {reasons}")
    if not report["requests"]:
        raise BenchError(f"No request to {url} ended within the {seconds:g} s measured.")
    return LoadFigures.from_report(report)
