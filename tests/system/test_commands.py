"""The commands a newcomer types: `heddle up` with the curl line it prints, and `heddle demo`."""

import asyncio
import json
import shlex
import sys
from asyncio.subprocess import PIPE
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

TINY = ("--records", "tau_airline", "--max-steps", "12", "--speed", "200")
POLICIES = ["round robin", "least load", "heddle"]
WAIT_S = 90.0


async def run(*command: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(WAIT_S):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_the_curl_line_that_up_prints_gets_an_answer(parts: Any, unused_port: int) -> None:
    up = await parts.run("up", "--port", str(unused_port), "--tp", "1", "--speed", "50")
    words = shlex.split((await up.line("curl ")).strip().partition("curl ")[2])
    await up.line("Ctrl-C stops.")
    url = words[0]
    assert url.startswith(f"http://127.0.0.1:{unused_port}/v1/")
    code, answer, errors = await run("curl", "--silent", "--show-error", *words)
    assert code == 0, errors
    assert json.loads(answer)["choices"][0]["message"]["content"]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_port}", trust_env=False) as http:
        stats = (await http.get("/admin/v1/stats")).json()
    assert stats["steps"]["ended"]["done"] == 1
    assert await up.stop() == 0


async def test_a_tiny_demo_compares_three_policies_in_a_table() -> None:
    code, output, errors = await run(sys.executable, "-m", "heddle_cli", "demo", *TINY, "--agents", "3")
    assert code == 0, errors
    rows = [next(line for line in output.splitlines() if line.startswith(policy)) for policy in POLICIES]
    for row in rows:
        # ... trajectories recognised, steps lost
        assert row.split()[-2:] == ["3", "0"]
    assert all(title in output for title in ("makespan", "to lower bound", "median", "p99", "cached"))


async def test_the_demos_figures_are_there_as_json() -> None:
    code, output, errors = await run(
        sys.executable, "-m", "heddle_cli", "demo", *TINY, "--agents", "8", "--json"
    )
    assert code == 0, errors
    figures = json.loads(output)
    assert (figures["agents"], list(figures["policies"])) == (8, POLICIES)
    for one in figures["policies"].values():
        assert one["makespan_s"] >= figures["lower_bound_s"] > 0
        assert one["to_lower_bound"] == pytest.approx(one["makespan_s"] / figures["lower_bound_s"])
        assert (one["recognised"], one["steps_lost"]) == (8, 0)
        assert one["steps_started"] == figures["steps"] == one["steps_ended"]["done"]
        assert 0 < one["median_s"] <= one["p99_s"] <= one["makespan_s"]
