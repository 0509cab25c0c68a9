"""Small servers that look like each engine family, over real sockets, and fleets over them."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from heddle_gateway.fleet import Fleet, FleetTuning
from heddle_gateway.supervision import Backoff

from .listening import PATIENCE_S, LiveCount, RecordingListener

Answer = tuple[int, Any]
"""Status and body: a dict or list is sent as JSON, text as it is."""


@dataclass(slots=True)
class Seen:
    """One request that a fake got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class QuietServer(uvicorn.Server):
    """uvicorn inside a test: the signals belong to pytest, and ``up`` is set when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """An ASGI app on a socket of this process, until it is stopped."""

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind((host, port))
        self._listening.listen()
        self.port: int = self._listening.getsockname()[1]
        self._server = QuietServer(
            uvicorn.Config(app, log_config=None, lifespan="off", access_log=False, interface="asgi3")
        )
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listening]))

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._server.up.wait()

    async def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        await self._task
        # uvicorn leaves those open that it was forced to leave in the middle of an answer.
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


@dataclass(slots=True)
class FakeEngine:
    """A table of answers by path; may be stopped and started again on its port, or made to hang.

    ``before_answer`` may wait, and may give another answer than the table. ``posts`` are routes that exist
    for POST alone, so a GET gets 405. ``gate`` holds every answer until it is set.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    posts: dict[str, Answer] = field(default_factory=dict)
    host: str = "127.0.0.1"
    api_key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    before_answer: Callable[[str], Awaitable[Answer | None]] | None = None
    _serving: Serving | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        self._serving = Serving(self.app, self.host, self.port)
        self.port = self._serving.port
        await self._serving.ready()

    async def stop(self) -> None:
        if self._serving is not None:
            await self._serving.stop()
            self._serving = None

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append(Seen(scope["method"], scope["path"], headers, body))
        chosen = await self.before_answer(scope["path"]) if self.before_answer is not None else None
        await self.gate.wait()
        status, content = chosen or self._choose(scope["method"], scope["path"], headers)
        raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        extra = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": raw})

    def _choose(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            return 401, {"error": "Unauthorized"}
        if path in self.posts:
            return self.posts[path] if method == "POST" else (405, {"detail": "Method Not Allowed"})
        return self.answers.get(path, (404, {"detail": "Not Found"}))


def models(*names: str, owned_by: str) -> Answer:
    cards = [{"id": name, "object": "model", "owned_by": owned_by} for name in names]
    return 200, {"object": "list", "data": cards}


def sglang_rank(running: int = 0, waiting: int = 0, used: int = 0, dp_rank: int = 0) -> dict[str, Any]:
    return {
        "dp_rank": dp_rank,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_used_tokens": used,
    }


def sglang_answers(**info: Any) -> dict[str, Answer]:
    """The fields of a real 0.5.23 /server_info that matter, with ``info`` over them."""
    server_info = {
        "tp_size": 2,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": 16,
        "random_seed": 11,
        "startup_time": {"load_weight": 1.25},
        "launch_command": "python -m sglang.launch_server",
        "max_running_requests": None,
        "max_total_num_tokens": 400_000,
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": False,
        "disable_priority_preemption": False,
        "priority_scheduling_preemption_threshold": 10,
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
        "version": "0.5.23",
    }
    return {
        "/server_info": (200, server_info | info),
        "/model_info": (200, {"served_model_name": "qwen3-8b", "weight_version": "default"}),
        "/v1/models": models("qwen3-8b", owned_by="sglang"),
        "/v1/loads": (200, {"loads": [sglang_rank(running=3, waiting=1, used=1000)]}),
        "/ping": (200, ""),
        "/health": (200, ""),
    }


SGLANG_POSTS: dict[str, Answer] = {
    "/abort_request": (200, ""),
    "/generate": (200, {}),
    "/pause_generation": (200, {"status": "ok"}),
    "/continue_generation": (200, {"status": "ok"}),
}

VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
process_start_time_seconds 1.7e+09
"""


def vllm_answers(metrics: str = VLLM_METRICS) -> dict[str, Answer]:
    return {
        "/version": (200, {"version": "0.11.0"}),
        "/health": (200, ""),
        "/v1/models": models("m", owned_by="vllm"),
        "/metrics": (200, metrics),
    }


def llamacpp_answers() -> dict[str, Answer]:
    return {
        "/props": (
            200,
            {
                "total_slots": 4,
                "model_path": "m.gguf",
                "build_info": "b8681",
                "default_generation_settings": {},
            },
        ),
        "/health": (200, {"status": "ok"}),
        "/slots": (200, [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]),
        "/v1/models": models("m.gguf", owned_by="llamacpp"),
    }


QUICK = FleetTuning(
    probe_period_s=0.05,
    probe_timeout_s=2.0,
    confirm_delay_s=0.01,
    probe_spacing_s=0.0,
    load_period_s=0.04,
    load_timeout_s=2.0,
    drain_poll_s=0.01,
    control_timeout_s=5.0,
    activation_backoff=Backoff(first=0.01, longest=0.05),
    restart_backoff=Backoff(first=0.01, longest=0.05),
    one_model=True,
)


@pytest.fixture
def quick() -> FleetTuning:
    return QUICK


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def live() -> LiveCount:
    return LiveCount()


@pytest.fixture
async def new_fleet(listener: RecordingListener, live: LiveCount) -> AsyncIterator[Callable[..., Fleet]]:
    fleets: list[Fleet] = []

    def new(tuning: FleetTuning = QUICK) -> Fleet:
        fleets.append(Fleet(listener, live, tuning))
        return fleets[-1]

    yield new
    for fleet in fleets:
        await fleet.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[FakeEngine]]]:
    """``await serve("sglang", **info)``; ``start=False`` gives a port on which nothing listens yet."""
    fakes: list[FakeEngine] = []

    async def start(
        kind: str = "sglang",
        *,
        answers: dict[str, Answer] | None = None,
        host: str = "127.0.0.1",
        api_key: str | None = None,
        start: bool = True,
        **info: Any,
    ) -> FakeEngine:
        tables: dict[str, Callable[..., dict[str, Answer]]] = {
            "sglang": sglang_answers,
            "vllm": vllm_answers,
            "llamacpp": llamacpp_answers,
            "openai": lambda: {"/v1/models": models("qwen3-8b", owned_by="somebody")},
        }
        fake = FakeEngine(tables[kind](**info) | (answers or {}), host=host, api_key=api_key)
        if kind == "sglang":
            fake.posts = dict(SGLANG_POSTS)
        fake.gate.set()
        fakes.append(fake)
        await fake.start()
        if not start:
            await fake.stop()
        return fake

    yield start
    for fake in fakes:
        fake.gate.set()
        await fake.stop()


@pytest.fixture
async def serve_app() -> AsyncIterator[Callable[[Any], Awaitable[str]]]:
    """``await serve_app(app)`` gives the URL at which an ASGI app listens."""
    servings: list[Serving] = []

    async def start(app: Any) -> str:
        servings.append(Serving(app))
        await servings[-1].ready()
        return f"http://127.0.0.1:{servings[-1].port}"

    yield start
    for serving in servings:
        await serving.stop()
