"""Finding the load generator, and what its report means."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from heddle_cli.bench import loadgen_binary
from heddle_cli.bench.errors import BenchError

QUANTILES = {"p50": 1500.0, "p90": 2000.0, "p99": 4000.0, "max": 9000.0, "mean": 1600.0}


def report(**changes: Any) -> dict[str, Any]:
    whole = {"requests": 120, "events": 240, "conversations": 15}
    return {
        "requests": 100,
        "errors": 0,
        "error_kinds": {},
        "reconnects": 0,
        "requests_per_s": 50.0,
        "latency_us": QUANTILES,
        "first_byte_us": QUANTILES,
        "events_per_s": 100.0,
        "whole_run": whole,
    } | changes


def script(path: Path, text: str) -> Path:
    """A program that stands in for the load generator."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def measure(binary: Path) -> loadgen_binary.LoadFigures:
    return loadgen_binary.measure(
        binary,
        "http://127.0.0.1:1",
        Path("body.json"),
        connections=1,
        seconds=0.1,
        warmup_s=0.0,
        tokens=1,
        step_header="x-heddle-step",
    )


def test_the_environment_comes_before_path_and_the_clone(tmp_path: Path) -> None:
    named = script(tmp_path / "named", "")
    on_path = script(tmp_path / "heddle-loadgen", "")
    built = tmp_path / "clone/router_rs/target/release/heddle-loadgen"
    built.parent.mkdir(parents=True)
    script(built, "")
    clone, path = tmp_path / "clone", str(tmp_path)
    assert loadgen_binary.find({"HEDDLE_LOADGEN": str(named), "PATH": path}, clone) == named
    assert loadgen_binary.find({"PATH": path}, clone) == on_path
    assert loadgen_binary.find({"PATH": ""}, clone) == built


def test_a_missing_binary_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="make bench-tools"):
        loadgen_binary.find({"PATH": ""}, tmp_path)


def test_a_named_file_that_cannot_run_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    on_path = script(tmp_path / "heddle-loadgen", "")
    with pytest.raises(BenchError, match="HEDDLE_LOADGEN"):
        loadgen_binary.find({"HEDDLE_LOADGEN": str(plain), "PATH": str(on_path.parent)}, tmp_path)


def test_microseconds_become_milliseconds(tmp_path: Path) -> None:
    figures = measure(script(tmp_path / "gen", f"echo '{json.dumps(report())}'"))
    assert (figures.p50_ms, figures.p99_ms, figures.first_byte_p50_ms) == (1.5, 4.0, 1.5)
    assert (figures.whole_requests, figures.whole_chunks) == (120, 240)


def test_one_failed_request_fails_the_measurement_and_is_named(tmp_path: Path) -> None:
    failed = report(errors=1, error_kinds={"status 503": 1})
    with pytest.raises(BenchError, match="1 x status 503"):
        measure(script(tmp_path / "gen", f"echo '{json.dumps(failed)}'"))


def test_a_measurement_without_a_request_fails(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No request"):
        measure(script(tmp_path / "gen", f"echo '{json.dumps(report(requests=0))}'"))


def test_the_load_generators_own_words_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="give the port"):
        measure(script(tmp_path / "gen", "echo 'give the port' >&2; exit 1"))
