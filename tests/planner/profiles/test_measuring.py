"""`heddle profile` against workers on real sockets that decode at a known pace."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile
from heddle_planner import cli
from heddle_planner.profiles.measuring import LadderSettings, WorkerProfileError, measure
from typer.testing import CliRunner

BASE_S, REQUEST_S = 0.020, 0.005
PREFILL_S = 50e-6
MOMENTS_SAMPLE = [(batch, 8000 + 100 * batch) for batch in range(1, 21)] * 10


@dataclass
class PacedWorker:
    """Streams tokens in lock-step: a step takes BASE_S + REQUEST_S x requests. SGLang or plain OpenAI."""

    sglang: bool = True
    slots: int = 8
    fails_at: int | None = None
    running: int = 0
    served: int = 0
    stepped: asyncio.Event = field(default_factory=asyncio.Event)

    async def decode(self) -> None:
        """One step after another; everybody who runs gets a token at its end."""
        while True:
            await asyncio.sleep(BASE_S + REQUEST_S * self.running)
            stepped, self.stepped = self.stepped, asyncio.Event()
            stepped.set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, route, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if b"content-length" in line
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                if method == "GET":
                    found = self.facts().get(route)
                    payload = json.dumps(found or {}).encode()
                    status = b"200 OK" if found else b"404 Not Found"
                    writer.write(
                        b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(payload), payload)
                    )
                else:
                    await self.generate(body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def facts(self) -> dict[str, Any]:
        if not self.sglang:
            return {"/v1/models": {"data": [{"id": "plain-model"}]}}
        sums = [0.0] * 6
        for batch, micros in MOMENTS_SAMPLE:
            for at, term in enumerate((1, batch, micros, batch * batch, batch * micros, batch)):
                sums[at] += term
        return {
            "/server_info": {"tp_size": 2, "served_model_name": "paced", "max_total_num_tokens": 20000},
            "/v1/loads": {
                "loads": [
                    {
                        "max_running_requests": self.slots,
                        "max_total_num_tokens": 20000,
                        "decode_moments": sums,
                        "total_prefill_uncached_tokens": 40000,
                        "total_prefill_busy_us": 2_000_000,
                    }
                ]
            },
        }

    async def generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.served += 1
        if self.fails_at == self.served:
            text = b'{"message": "out of paper"}'
            writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        async for event in self.native(body) if self.sglang else self.completion(body):
            data = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def tokens(self, prompt: int, count: int) -> AsyncIterator[int]:
        await asyncio.sleep(PREFILL_S * prompt)
        self.running += 1
        try:
            for made in range(1, count + 1):
                await self.stepped.wait()
                yield made
        finally:
            self.running -= 1

    async def native(self, body: dict[str, Any]) -> AsyncIterator[str]:
        prompt = len(body["input_ids"])
        assert body["sampling_params"]["ignore_eos"] is True
        async for made in self.tokens(prompt, body["sampling_params"]["max_new_tokens"]):
            yield json.dumps(
                {"text": "x" * made, "meta_info": {"prompt_tokens": prompt, "completion_tokens": made}}
            )
        yield "[DONE]"

    async def completion(self, body: dict[str, Any]) -> AsyncIterator[str]:
        prompt = len(body["prompt"].split())
        assert body["model"] == "plain-model"
        async for _ in self.tokens(prompt, body["max_tokens"]):
            yield json.dumps({"choices": [{"text": "x"}]})
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"


@contextmanager
def serving(worker: PacedWorker) -> Iterator[str]:
    """The worker's URL; it runs in a thread of its own, as `measure` runs a loop of its own."""
    started, url, stop = threading.Event(), [], []

    async def main() -> None:
        server = await asyncio.start_server(worker.answer, "127.0.0.1", 0)
        decoding = asyncio.create_task(worker.decode())
        ending = asyncio.Event()
        url.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(ending.set))
        started.set()
        await ending.wait()
        decoding.cancel()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(10)
    try:
        yield url[0]
    finally:
        stop[0]()
        thread.join(10)


SETTINGS = LadderSettings(batches=(1, 4), tokens=12, long_prompt=1024)


def only_degree(profile: WorkerProfile, degree: int) -> DegreeProfile:
    assert list(profile.degrees) == [degree]
    found = profile.degrees[degree]
    assert isinstance(found, DegreeProfile)
    return found


# A shared machine can only slow a step down, so the bounds are close below and wide above.


def test_a_ladder_finds_the_step_times_of_an_sglang_worker() -> None:
    with serving(PacedWorker()) as url:
        profile = measure(url, SETTINGS, from_moments=False)
    found = only_degree(profile, 2)
    assert profile.model == "paced"
    assert profile.made_by == "ladder"
    assert found.batches == (1, 4)
    assert 0.9 * 0.025 < found.step_seconds[0] < 2 * 0.025
    assert 0.9 * 0.040 < found.step_seconds[1] < 2 * 0.040
    assert found.step_seconds[1] - found.step_seconds[0] > 0.5 * 0.015
    assert found.kv_tokens == 20000
    assert found.slots == 8
    assert found.prefill_tokens_per_second > 0


def test_a_worker_that_only_speaks_openai_is_measured_through_completions() -> None:
    with serving(PacedWorker(sglang=False)) as url:
        profile = measure(url, LadderSettings((1, 4), 12, 256, degree=1), from_moments=False)
    found = only_degree(profile, 1)
    assert profile.model == "plain-model"
    assert 0.9 * 0.025 < found.step_seconds[0] < 2 * 0.025
    assert found.step_seconds[1] > found.step_seconds[0]


def test_the_ladder_stays_within_the_slots() -> None:
    worker = PacedWorker(slots=2)
    with serving(worker) as url:
        profile = measure(url, LadderSettings((1, 2, 64), 8, 64), from_moments=False)
    assert only_degree(profile, 2).batches == (1, 2)


def test_decode_moments_are_fitted_without_sending_a_request() -> None:
    worker = PacedWorker()
    with serving(worker) as url:
        profile = measure(url, SETTINGS, from_moments=True)
    found = only_degree(profile, 2)
    assert worker.served == 0
    assert profile.made_by == "decode_moments"
    assert found.batches == (1, 8)
    assert found.step_seconds == pytest.approx((0.0081, 0.0088))
    assert found.prefill_tokens_per_second == pytest.approx(20000)


def test_a_worker_that_hides_its_degree_must_be_told_it() -> None:
    with serving(PacedWorker(sglang=False)) as url, pytest.raises(ValueError, match=r"--degree: .* give it"):
        measure(url, SETTINGS, from_moments=False)


def test_a_failed_request_ends_the_measurement_with_the_worker_s_words() -> None:
    with (
        serving(PacedWorker(fails_at=4)) as url,
        pytest.raises(WorkerProfileError, match=r"500: .*out of paper"),
    ):
        measure(url, SETTINGS, from_moments=False)


def test_moments_of_a_worker_without_them_are_refused() -> None:
    with (
        serving(PacedWorker(sglang=False)) as url,
        pytest.raises(WorkerProfileError, match="no decode_moments"),
    ):
        measure(url, LadderSettings(degree=1), from_moments=True)


def test_nobody_listening_is_exit_code_3_and_a_bad_url_2() -> None:
    command = cli.profile_app
    gone = CliRunner().invoke(command, ["http://127.0.0.1:9"])
    assert gone.exit_code == 3
    assert "http://127.0.0.1:9: /server_info failed: ConnectError" in gone.stderr
    odd = CliRunner().invoke(command, ["gpu1:30000"])
    assert odd.exit_code == 2
    assert "has no scheme; give for example http://gpu1:30000" in odd.stderr


def test_the_command_puts_degrees_of_one_model_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    command = cli.profile_app
    with serving(PacedWorker()) as url:
        for arguments in (["--method", "moments"], ["--method", "moments", "--degree", "4"]):
            result = CliRunner().invoke(command, [url, "--out", str(path), *arguments])
            assert result.exit_code == 0, result.stderr
    written = WorkerProfile.model_validate_json(path.read_text())
    assert list(written.degrees) == [2, 4]
    assert set(written.sources) == {"degree 2", "degree 4"}
    with serving(PacedWorker(sglang=False)) as url:
        other = CliRunner().invoke(
            command,
            [url, "--out", str(path), "--degree", "1", "--batches", "1", "--tokens", "8", "--context", "64"],
        )
    assert other.exit_code == 2
    assert "field model: is 'paced', the worker serves 'plain-model'" in other.stderr
