"""Recorded agents against emulated workers: contexts as recorded, and what is reported."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedStep, RecordedTrajectory, load_shipped
from heddle_cli.replay.rollout import Progress, run_rollout

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    """Base URL of an emulated worker in a process of its own."""
    command = [sys.executable, "-m", "heddle_shim.emulator", "--base-port", "0", "--speed", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["workers"][0]
        finally:
            process.terminate()
            process.wait(timeout=10)


def trajectory(name: str, steps: list[tuple[int, int]], prompt: int = 400) -> RecordedTrajectory:
    recorded = tuple(RecordedStep(new, output, "bash", 0.5) for new, output in steps)
    return RecordedTrajectory(name, f"task-{name}", 0, "coding", prompt, recorded)


@pytest.mark.parametrize("agents", ["whole", "stream", "lean"])
async def test_the_server_counts_the_contexts_and_answers_of_the_record(worker: str, agents: str) -> None:
    # Answers too short for a tool call and results too short for a message are among them.
    record = trajectory(f"exact-{agents}", [(0, 60), (100, 9), (40, 120), (2, 33), (300, 1), (80, 50)])
    settings = ReplaySettings(speed=200, stream=agents == "stream")
    report = await run_rollout(worker + "/v1", [record], settings, lean=agents == "lean")
    assert report.errors == []
    steps = report.results[0].steps
    assert [step.output_tokens for step in steps] == [60, 9, 120, 33, 1, 50]
    expected = [record.context_before(index) for index in range(6)]
    # A result of two tokens cannot be: its message alone takes five. The next result makes up for it.
    expected[3] += 3
    assert [step.prompt_tokens for step in steps] == expected
    assert [step.finish_reason for step in steps][::2] == ["tool_calls", "tool_calls", "stop"]
    for before, after in pairwise(steps):
        assert after.cached_tokens == before.prompt_tokens + before.output_tokens - 1


async def test_a_lean_agent_learns_what_of_the_time_was_the_engines(worker: str) -> None:
    report = await run_rollout(
        worker + "/v1", [trajectory("timed", [(0, 400), (10, 100)])], ReplaySettings(speed=200), lean=True
    )
    long, short = (step.engine_s for step in report.results[0].steps)
    assert long is not None
    assert short is not None
    # A token takes some 7 ms of the emulated GPU.
    assert 3.0 * short < long < 400 * 0.02
    assert long < report.makespan_s


async def test_a_lean_agent_tries_again_what_a_server_may_refuse_or_cut_off() -> None:
    answer = {
        "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5},
    }
    body = json.dumps(answer).encode()
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    busy = b"HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"
    # Of each connection in turn, what it answers; then it is closed.
    connections = iter([[busy, whole[:30]], [whole], [whole]])
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for said in next(connections):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            asked.append(await reader.readexactly(length))
            writer.write(said)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        record = trajectory("again", [(0, 5), (10, 5)])
        report = await run_rollout(
            f"http://127.0.0.1:{port}/v1", [record], ReplaySettings(speed=50), lean=True
        )
    assert report.errors == []
    assert len(report.results[0].steps) == 2
    first = [json.loads(one)["messages"] for one in asked]
    assert first[0] == first[1] == first[2] == first[3][:2]
    assert first[3][2] == {"role": "assistant", "content": "yes"}


async def test_samples_of_a_task_share_their_prompt_and_tasks_of_a_domain_its_beginning(worker: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(worker + "/flush_cache")).raise_for_status()
    first, other = (trajectory(name, [(0, 20)], prompt=2000) for name in ("one", "two"))
    settings = ReplaySettings(speed=200)
    cached: list[int] = []
    for record in (first, first, other):
        report = await run_rollout(worker + "/v1", [record], settings)
        cached.append(report.results[0].steps[0].cached_tokens)
    assert cached[0] == 0
    assert cached[1] == 1999
    assert 600 < cached[2] < 720


async def test_a_rollout_of_recorded_agents_reports_progress_times_and_cache(worker: str) -> None:
    records = [record.cut(max_steps=4, max_context=8000) for record in load_shipped("tau_airline")[:24]]
    seen: list[Progress] = []
    report = await run_rollout(worker + "/v1", records, ReplaySettings(speed=200), on_progress=seen.append)
    total = sum(len(record.steps) for record in records)
    assert (report.errors, report.lost_steps) == ([], 0)
    assert (seen[-1].steps_done, seen[-1].trajectories_done) == (total, 24)
    assert report.output_tokens == sum(record.output_tokens for record in records)
    assert report.cached_share > 0.5
    times = report.trajectory_seconds()
    assert len(times) == 24
    assert times[0] <= report.quantile_s(0.5) <= report.quantile_s(0.99) == times[-1] <= report.makespan_s
    # Three tool gaps of a second each, at least.
    assert times[0] >= 3.0


@pytest.mark.parametrize(("lean", "why"), [(False, "APIConnectionError"), (True, "ConnectionLost")])
async def test_an_agent_that_has_to_give_up_says_why_and_what_is_lost(lean: bool, why: str) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        record = trajectory("lost", [(0, 5), (10, 5)])
        report = await run_rollout(f"http://127.0.0.1:{port}/v1", [record], ReplaySettings(), lean=lean)
    assert report.lost_steps == 2
    assert report.errors[0].startswith(f"lost: step 0: {why}")
    assert report.trajectory_seconds() == []
    assert report.quantile_s(0.5) == 0.0
