"""`heddle profile` against workers on real sockets that decode at a known pace."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile
from heddle_planner import cli
from heddle_planner.profiles.measuring import LadderSettings, WorkerProfileError, measure
from typer.testing import CliRunner

BASE_S, REQUEST_S = 0.010, 0.002
PREFILL_S = 50e-6
MOMENTS_SAMPLE = [(batch, 8000 + 100 * batch) for batch in range(1, 21)] * 10


@dataclass
class PacedWorker:
    """A batch of b answers of n tokens takes its prefill and n (BASE_S + REQUEST_S b). SGLang or OpenAI."""

    sglang: bool = True
    slots: int = 8
    fails_at: int | None = None
    stops_early: bool = False
    served: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, route, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                lengths = [
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                ]
                body = json.loads(await reader.readexactly(int(lengths[0].split(b":")[1]))) if lengths else {}
                if method == "GET":
                    found: Any = self.facts().get(route)
                    status = 200 if found else 404
                else:
                    status, found = await self.generate(route, body)
                payload = json.dumps(found).encode()
                head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(payload))
                writer.write(head + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def generate(self, route: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.served += 1
        if self.fails_at == self.served:
            return 500, {"message": "out of paper"}
        if self.sglang:
            assert route == "/generate"
            prompts = [len(prompt) for prompt in body["input_ids"]]
            params = body["sampling_params"]
            count, ignores_eos = params["max_new_tokens"], params["ignore_eos"]
        else:
            assert route == "/v1/completions"
            assert body["model"] == "plain-model"
            prompts = [len(prompt.split()) for prompt in body["prompt"]]
            count, ignores_eos = body["max_tokens"], body["ignore_eos"]
        assert ignores_eos
        if self.stops_early:
            count -= 1
        await asyncio.sleep(PREFILL_S * sum(prompts) + count * (BASE_S + REQUEST_S * len(prompts)))
        if self.sglang:
            return 200, [
                {"meta_info": {"prompt_tokens": each, "completion_tokens": count}} for each in prompts
            ]
        usage = {"prompt_tokens": sum(prompts), "completion_tokens": count * len(prompts)}
        return 200, {"choices": [], "usage": usage}

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


@contextmanager
def serving(worker: PacedWorker) -> Iterator[str]:
    """The worker's URL; it runs in a thread of its own, as `measure` runs a loop of its own."""
    started, url, stop = threading.Event(), [], []

    async def main() -> None:
        server = await asyncio.start_server(worker.answer, "127.0.0.1", 0)
        ending = asyncio.Event()
        url.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(ending.set))
        started.set()
        await ending.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(10)
    try:
        yield url[0]
    finally:
        stop[0]()
        thread.join(10)


SETTINGS = LadderSettings(batches=(1, 4), tokens=8, long_prompt=1024)


def only_degree(profile: WorkerProfile, degree: int) -> DegreeProfile:
    assert list(profile.degrees) == [degree]
    found = profile.degrees[degree]
    assert isinstance(found, DegreeProfile)
    return found


def test_a_ladder_finds_the_step_times_of_an_sglang_worker() -> None:
    with serving(PacedWorker()) as url:
        profile = measure(url, SETTINGS, from_moments=False)
    found = only_degree(profile, 2)
    assert profile.model == "paced"
    assert profile.made_by == "ladder"
    assert found.batches == (1, 4)
    assert found.step_seconds[0] == pytest.approx(BASE_S + REQUEST_S, rel=0.3)
    assert found.step_seconds[1] == pytest.approx(BASE_S + 4 * REQUEST_S, rel=0.3)
    assert found.prefill_tokens_per_second == pytest.approx(1 / PREFILL_S, rel=0.5)
    assert found.kv_tokens == 20000
    assert found.slots == 8


def test_a_worker_that_only_speaks_openai_is_measured_through_completions() -> None:
    with serving(PacedWorker(sglang=False)) as url:
        profile = measure(url, LadderSettings((1, 4), 8, 256, degree=1), from_moments=False)
    found = only_degree(profile, 1)
    assert profile.model == "plain-model"
    assert found.step_seconds[0] == pytest.approx(BASE_S + REQUEST_S, rel=0.3)
    assert found.step_seconds[1] == pytest.approx(BASE_S + 4 * REQUEST_S, rel=0.3)
    assert found.slots == 4


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


def test_a_worker_that_stops_early_is_no_measure() -> None:
    says = r"/generate made 7 tokens where 8 were asked for"
    with serving(PacedWorker(stops_early=True)) as url, pytest.raises(WorkerProfileError, match=says):
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


def test_where_the_profile_cannot_be_written_nothing_is_measured(tmp_path: Path) -> None:
    for out, said in ((tmp_path / "none" / "x.json", "is not there"), (tmp_path, "is a folder")):
        refused = CliRunner().invoke(cli.profile_app, ["http://127.0.0.1:9", "--out", str(out)])
        assert refused.exit_code == 2, "nobody listens there, and nobody was asked"
        assert "--out: " in refused.stderr
        assert said in refused.stderr


def test_a_profile_takes_the_place_of_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    linked = tmp_path / "link.json"
    linked.symlink_to(path)
    with serving(PacedWorker()) as url:
        for degree in ("2", "4"):
            arguments = [url, "--out", str(linked), "--method", "moments", "--degree", degree]
            old = path.stat().st_ino if path.exists() else None
            assert CliRunner().invoke(cli.profile_app, arguments).exit_code == 0
            assert path.stat().st_ino != old, "another file, put in its place when it was whole"
    assert linked.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.json", "profile.json"]
