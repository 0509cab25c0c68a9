"""Real SGLang servers on the CPU, each below its shim, as processes that a test drives over sockets."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "worker_shim/sglang_cpu"
PAGE = 16
SLOTS = 2
# A server starts in 20 s on two idle cores; the bound is for a machine that has much else to do.
START_S = 420.0
ANSWER_S = 180.0
POLL_S = 0.05


def install() -> Path:
    """The folder of the CPU recipe; made if need be."""
    done = subprocess.run([RECIPE / "install"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], Any], what: str, seconds: float = ANSWER_S) -> Any:
    """Asks until the answer is true; returns it."""
    ends = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"waited {seconds:g} s in vain for: {what}")
        time.sleep(POLL_S)
    return found


def client(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, timeout=ANSWER_S, trust_env=False)


@dataclass
class Answer:
    """What ``/generate`` answered. ``logprobs`` of the output tokens."""

    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    cached: int
    meta: dict[str, Any]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]

    @property
    def full_pages(self) -> int:
        """Tokens of the full pages that the engine has after this: the last token was never run."""
        return (len(self.tokens) - 1) // PAGE * PAGE


def assert_same_answer(moved: Answer, stayed: Answer) -> None:
    """Greedy in float32: the same tokens, and the same logprobs but for the order of additions."""
    assert moved.output == stayed.output
    furthest = max(abs(one - other) for one, other in zip(moved.logprobs, stayed.logprobs, strict=True))
    assert furthest < 1e-4, f"logprobs differ by {furthest}"


@dataclass
class Worker:
    """One engine with its shim. ``start`` it, ``stop`` it."""

    name: str
    folder: Path
    venv: Path
    engine_options: Sequence[str] = ()
    shim_options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    launcher: Sequence[str] | None = None
    port: int = field(default_factory=free_port)
    shim_port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def shim_url(self) -> str:
        return f"http://127.0.0.1:{self.shim_port}"

    @property
    def engine_log(self) -> Path:
        return self.folder / f"{self.name}-engine.log"

    def options(self) -> list[str]:
        """What SGLang is started with, before the shim's own."""
        return [
            *("--model-path", str(self.venv / "tiny"), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"),
            *("--attention-backend", "torch_native", "--dtype", "float32"),
            *("--max-total-tokens", "24576", "--max-running-requests", str(SLOTS)),
            *("--page-size", str(PAGE), "--hicache-ratio", "2", "--hicache-mem-layout", "layer_first"),
            *self.engine_options,
        ]

    def start(self, *options: str) -> None:
        """Starts it; ``ready`` waits for it."""
        launcher = self.launcher or (str(self.venv / "bin/python"), str(RECIPE / "launch.py"))
        arguments = [
            *(sys.executable, "-m", "heddle_cli", "shim", "--port", str(self.shim_port)),
            *("--engine-command", shlex.join(launcher), "--engine-log", str(self.engine_log)),
            *("--store", str(self.folder / f"{self.name}-store"), "--store-bytes", "64M"),
            *("--name", self.name, "--launch", shlex.join(self.options())),
            *self.shim_options,
            *options,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
        with (self.folder / f"{self.name}-shim.log").open("w") as log:
            self.process = subprocess.Popen(
                arguments, stdout=log, stderr=log, text=True, env=environment | self.environment
            )

    def ready(self) -> dict[str, Any]:
        """Waits for engine and plugin; returns the handshake."""

        def answers() -> dict[str, Any] | None:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name}: the shim ended: {self.logs()}")
            try:
                said: dict[str, Any] = self.ask_shim("GET", "/shim/v1/handshake")
            except httpx.TransportError:
                return None
            return said if self.is_ready(said) else None

        try:
            found: dict[str, Any] = wait_until(answers, f"{self.name} to be ready", START_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error
        return found

    def is_ready(self, handshake: dict[str, Any]) -> bool:
        return handshake["namespace"] is not None and "warm" in handshake["engine"]["features"]

    def stop(self) -> int:
        """SIGTERM to the shim; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def logs(self) -> str:
        """The ends of both logs."""
        found = []
        for path in (self.folder / f"{self.name}-shim.log", self.engine_log):
            if path.exists():
                lines = [line[:400] for line in path.read_text(errors="replace").splitlines()]
                found.append(f"--- {path.name}\n" + "\n".join(lines[-40:]))
        return "\n".join(found)

    # ---------------------------------------------------------------- the engine

    def generate(self, tokens: Sequence[int], new: int = 12, **more: Any) -> Answer:
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
            "return_logprob": True,
            **more,
        }
        with client(self.url) as http:
            said = http.post("/generate", json=body).raise_for_status().json()
        meta = said["meta_info"]
        logprobs = [entry[0] for entry in meta.get("output_token_logprobs", ())]
        return Answer(list(tokens), said["output_ids"], logprobs, meta["cached_tokens"], meta)

    def loads(self) -> dict[str, Any]:
        with client(self.url) as http:
            [load] = http.get("/v1/loads").raise_for_status().json()["loads"]
        found: dict[str, Any] = load
        return found

    def is_idle(self) -> bool:
        load = self.loads()
        return load["num_running_reqs"] == load["num_waiting_reqs"] == 0

    def rest(self) -> None:
        """Until the batch of a step that was just answered is cleared away; SGLang takes no weights before.
        Empties its cache.
        """

        def has_flushed() -> bool:
            with client(self.url) as http:
                return http.post("/flush_cache").is_success

        wait_until(has_flushed, f"{self.name} at rest")

    def update_weights(self, version: str | None, model: Path | None = None) -> None:
        """Of ``model``, or of what it was started with. ``version`` None: the weights get no name."""
        self.rest()
        body = {"model_path": str(model or self.venv / "tiny")}
        body |= {"weight_version": version} if version else {}
        with client(self.url) as http:
            said = http.post("/update_weights_from_disk", json=body).json()
        assert said["success"], said
        if version is None:
            return
        wait_until(
            lambda: (self.handshake()["namespace"] or {}).get("weight_version") == version,
            f"weights {version} in the handshake of {self.name}",
        )

    # ---------------------------------------------------------------- the shim

    def ask_shim(self, method: str, path: str, body: Any = None) -> Any:
        with client(self.shim_url) as http:
            return http.request(method, path, json=body).json()

    def handshake(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask_shim("GET", "/shim/v1/handshake")
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask_shim("GET", "/shim/v1/report")
        return found

    def residency(self, tokens: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = self.ask_shim("POST", "/shim/v1/residency", {"tokens": list(tokens)})
        return found

    def begin_move(self, migration: str, target: str, **which: Any) -> dict[str, Any]:
        body = {"id": migration, "trajectory": migration, "target": target, "deadline_s": 120.0, **which}
        found: dict[str, Any] = self.ask_shim("POST", "/shim/v1/migrations", body)
        return found

    def migration(self, migration: str, wait_s: float = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.ask_shim("GET", f"/shim/v1/migrations/{migration}?wait={wait_s}")
        return found

    def move(self, migration: str, target: str, **which: Any) -> dict[str, Any]:
        """Moves and waits for the end; the status."""
        self.begin_move(migration, target, **which)
        return self.ended(migration)

    def ended(self, migration: str) -> dict[str, Any]:
        def final() -> dict[str, Any] | None:
            status = self.migration(migration, 10)
            return None if status["state"] in {"accepted", "moving"} else status

        found: dict[str, Any] = wait_until(final, f"the end of migration {migration}")
        return found


def with_like_weights(one: Worker, other: Worker, name: str) -> None:
    """Earlier tests may have given them weights of unlike names."""
    names = [worker.handshake()["namespace"]["weight_version"] for worker in (one, other)]
    if names[0] != names[1]:
        for worker in (one, other):
            worker.update_weights(name)


def engine_pid(worker: Worker) -> int:
    """The server that this worker's shim launched."""
    assert worker.process is not None
    [child] = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
    return int(child)


@contextmanager
def stopping(worker: Worker) -> Iterator[Worker]:
    try:
        yield worker
    finally:
        if worker.process is not None:
            worker.stop()


@contextmanager
def gateway(folder: Path, *options: str) -> Iterator[httpx.Client]:
    """A gateway process; the client of its base URL."""
    port = free_port()
    arguments = ["gateway", "--port", str(port), "--database", str(folder / f"{port}.db"), *options]
    log: TextIO
    with (folder / f"gateway-{port}.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "heddle_cli", *arguments], stdout=log, stderr=log)

    def listens() -> bool:
        if process.poll() is not None:
            raise AssertionError((folder / f"gateway-{port}.log").read_text()[-4000:])
        try:
            http.get("/ready")
        except httpx.TransportError:
            return False
        return True

    try:
        with client(f"http://127.0.0.1:{port}") as http:
            wait_until(listens, "the gateway to listen")
            yield http
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(ANSWER_S)


def in_store(worker: Worker, answer: Answer) -> Answer:
    """Waits until all full pages of what it answered lie in the worker's store."""
    wait_until(
        lambda: (worker.residency(answer.tokens)["store"] or 0) * PAGE >= answer.full_pages,
        f"pages in the store of {worker.name}",
    )
    return answer
