"""``heddle shim``: stands beside one SGLang server, launched here or running already, until SIGTERM."""

import asyncio
import json
import logging
import os
import shlex
import signal
import socket
import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version as version_of_distribution
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_contracts.keys import first_key
from starlette.applications import Starlette
from starlette.types import ASGIApp

from heddle_shim.access import KeyRequired
from heddle_shim.engine_client import EngineClient
from heddle_shim.engine_flags import FlagsRefused, KvStore, Options, engine_arguments, unstorable
from heddle_shim.engine_path import engine_environment, make_engine_path
from heddle_shim.engine_process import EngineProcess
from heddle_shim.engine_version import OLDEST_FOR_KV, parse_version, version_of_command
from heddle_shim.gateway_urls import gateway_urls
from heddle_shim.http_server import AppServer
from heddle_shim.model_facts import ModelFacts, model_facts
from heddle_shim.plugin_client import PluginClient
from heddle_shim.registration import Registration
from heddle_shim.routes import ShimRoutes
from heddle_shim.sglang_plugin.engine_note import remove_note
from heddle_shim.shim import Shim
from heddle_shim.transfer.extra_transports import UnknownTransport, load_mover
from heddle_shim.transfer.migrations import Migrations
from heddle_shim.transfer.mover import TransportMissing
from heddle_shim.transfer.page_store import PageStore, remove_abandoned
from heddle_shim.transfer.routes import MigrationRoutes
from heddle_shim.transfer.store_errors import StoreError
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import TcpReceiver

DEFAULT_ENGINE_PORT = 30000
SIZES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
EVERYWHERE = {"0.0.0.0", "::", "[::]"}
STORE_PREFIX = f"heddle-{os.getuid()}-"

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to stand beside, and how others reach it."""

    engine_url: str
    launch: Options | None
    engine_command: tuple[str, ...]
    engine_log: Path | None
    engine_key: str | None
    host: str
    port: int
    transfer_port: int
    transports: tuple[str, ...]
    advertise: str
    gateways: tuple[str, ...]
    gateway_key: str | None
    name: str | None
    store: Path | None
    store_bytes: int
    drain_s: float


def parse_size(value: str) -> int:
    """Bytes from "16G", "512M" or a plain number; units of 1024."""
    text = value.strip().lower().removesuffix("ib").removesuffix("b")
    unit = SIZES.get(text[-1:], 1)
    try:
        return int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is no size such as 16G", param_hint="--store-bytes") from None


@app.command()
def shim(
    engine_url: Annotated[
        str | None, typer.Option(help="URL of a running SGLang server to stand beside.")
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(help='Start SGLang with these options, such as "--model-path /models/qwen3 --tp 2".'),
    ] = None,
    engine_command: Annotated[
        str | None, typer.Option(help="What starts SGLang; by default this Python's sglang.launch_server.")
    ] = None,
    engine_log: Annotated[
        Path | None, typer.Option(help="File for the launched engine's output; by default the shim's own.")
    ] = None,
    engine_key: Annotated[
        str | None, typer.Option(envvar="HEDDLE_ENGINE_KEY", help="API key of the engine, where it has one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address that the shim listens on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the shim's HTTP; 0 takes a free one.")
    ] = 31900,
    transfer_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port that KV arrives on; 0 takes a free one.")
    ] = 0,
    transport: Annotated[
        list[str] | None,
        typer.Option(help="RDMA engine for KV, before tcp: mooncake, mooncake-tcp or nixl; may be repeated."),
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="Host name by which gateway and other shims reach this host.")
    ] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(help="Gateway to register with; may be given more than once.", callback=gateway_urls),
    ] = None,
    gateway_key: Annotated[
        str | None,
        typer.Option(envvar="HEDDLE_ADMIN_KEYS", help="Admin key of the gateways; the first one of a list."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The worker's name in X-Heddle-Worker.")] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the page store of a launched engine; by default in /dev/shm, named by its port."
        ),
    ] = None,
    store_bytes: Annotated[str, typer.Option(help="Byte budget of that page store, such as 64G.")] = "4G",
    no_kv: Annotated[
        bool, typer.Option("--no-kv", help="Launch without page store and HiCache: nothing can be moved.")
    ] = False,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that running steps may go on after SIGTERM.")
    ] = 0.0,
) -> None:
    """Stand beside one SGLang server: launch and watch it, report it, move KV, until SIGTERM or Ctrl-C."""
    if (engine_url is None) == (launch is None):
        raise typer.BadParameter("give either --engine-url or --launch")
    if engine_url is not None and not _is_http(engine_url):
        raise typer.BadParameter(f"--engine-url {engine_url!r}: write it as http://HOST:PORT")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        options = Options.parse(launch) if launch is not None else None
        url = engine_url or _launched_url(options)  # type: ignore[arg-type]
        settings = Settings(
            engine_url=url,
            launch=options,
            engine_command=tuple(
                shlex.split(engine_command)
                if engine_command
                else (sys.executable, "-m", "sglang.launch_server")
            ),
            engine_log=engine_log,
            engine_key=engine_key,
            host=host,
            port=port,
            transfer_port=transfer_port,
            transports=tuple(transport or ()),
            advertise=advertise or ("127.0.0.1" if host in {"127.0.0.1", "localhost"} else socket.getfqdn()),
            gateways=tuple(gateway or ()),
            gateway_key=first_key(gateway_key) if gateway_key else None,
            name=name,
            # An engine that runs already was not told of a store.
            store=None if no_kv or launch is None else store or _default_store(url),
            store_bytes=parse_size(store_bytes),
            drain_s=drain_timeout,
        )
        asyncio.run(serve(settings))
    except (FlagsRefused, StoreError, TransportMissing, UnknownTransport, OSError) as error:
        raise CommandFailed(Exit.FAILED, f"shim: {error}") from error


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _launched_url(options: Options) -> str:
    """Where the shim reaches the engine that it launches."""
    port = options.number("--port", DEFAULT_ENGINE_PORT)
    listens = options.get("--host") or "127.0.0.1"
    return f"http://{'127.0.0.1' if listens in EVERYWHERE else listens}:{port}"


def _default_store(engine_url: str) -> Path:
    return Path("/dev/shm") / f"{STORE_PREFIX}{engine_url.rstrip('/').rpartition(':')[2]}"


async def serve(settings: Settings) -> None:
    """Runs until a signal; raises what ended the shim otherwise."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        shim = await _start(settings, stack)
        stopping = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(shim.failed())
        try:
            await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
        finally:
            for task in (stopping, failing):
                task.cancel()
            await asyncio.gather(stopping, failing, return_exceptions=True)


async def _start(settings: Settings, stack: AsyncExitStack) -> Shim:
    """Everything in the order it needs each other; the stack ends it in the other order."""
    store = None
    if settings.store is not None:
        # What a shim and an engine that were killed have left is memory nobody else gives back.
        remove_abandoned(settings.store.parent, STORE_PREFIX)
        store = PageStore.create(settings.store, settings.store_bytes)
        stack.callback(store.close, remove=True)
    process = _process(settings, store)
    plugin = PluginClient(store.root) if store is not None else None
    client = EngineClient(settings.engine_url, settings.engine_key)
    shim = await stack.enter_async_context(Shim(client, process, store, plugin))
    movers = [load_mover(name, settings.advertise) for name in settings.transports]
    # One key guards what acts on the engine: its own API, the shim's, and the KV that is put beside it.
    key = settings.engine_key
    receiver = TcpReceiver(shim.side, settings.host, settings.transfer_port, settings.advertise, movers, key)
    await receiver.start()
    stack.push_async_callback(receiver.close)
    migrations = Migrations(shim.side, [TcpTransport(mover, key) for mover in (*movers, None)])
    stack.push_async_callback(migrations.close)
    moving = MigrationRoutes(
        shim.side,
        migrations,
        dict.fromkeys(receiver.names, receiver),
        shim_version=version_of_distribution("heddle-shim"),
    )
    listener = socket.create_server((settings.host, settings.port), backlog=256)
    listener.setblocking(False)
    stack.callback(listener.close)
    routes = [*moving.routes(), *ShimRoutes(shim).routes()]
    app: ASGIApp = Starlette(routes=routes)
    if settings.engine_key is not None:
        app = KeyRequired(app, settings.engine_key)
    await stack.enter_async_context(AppServer(app, listener))
    shim_url = f"http://{settings.advertise}:{listener.getsockname()[1]}"
    # As gateways know it: who launched this shim drains the engine under that name.
    engine_url = settings.engine_url
    if settings.launch is not None:
        engine_url = f"http://{settings.advertise}:{engine_url.rpartition(':')[2]}"
    _register(settings, stack, shim, engine_url, shim_url)
    sys.stdout.write(json.dumps({"ready": True, "shim": shim_url, "engine": engine_url}) + "\n")
    sys.stdout.flush()
    return shim


def _register(settings: Settings, stack: AsyncExitStack, shim: Shim, engine_url: str, shim_url: str) -> None:
    registrations = [
        Registration(
            gateway,
            settings.gateway_key,
            engine_url=engine_url,
            shim_url=shim_url,
            name=settings.name,
            engine_key=settings.engine_key,
        )
        for gateway in settings.gateways
    ]
    telling = [asyncio.create_task(one.run(shim), name="reports to a gateway") for one in registrations]

    async def leave() -> None:
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        # All at once: while one gateway's steps end, no other gives new ones.
        await asyncio.gather(*(one.leave(settings.drain_s) for one in registrations))

    stack.push_async_callback(leave)


def _process(settings: Settings, store: PageStore | None) -> EngineProcess | None:
    """Raises FlagsRefused."""
    if settings.launch is None:
        return None
    options = settings.launch
    said = version_of_command(settings.engine_command, os.environ)
    version = parse_version(said) if said is not None else None
    if store is not None and version is not None and version < OLDEST_FOR_KV:
        log.warning("SGLang %s is too old for its KV to be moved; it is started without the page store", said)
        store = None
    if (why := unstorable(options)) is not None and store is not None:
        log.warning("%s: the engine is started without HiCache, its KV is not stored and stays here", why)
    ports = _free_ports(2)

    def command() -> list[str]:
        """Of the next start: what lies where the model does may be another one by then."""
        kv = None
        if store is not None:
            model = _model(options)
            kv = KvStore(store.root, model.fingerprint, model.kv_heads, *ports)
        return [*settings.engine_command, *engine_arguments(options, kv, version)]

    command()  # What is wrong with it is said now, not when the engine is to start.
    path = make_engine_path(store.root) if store is not None else None

    def forget(_: int) -> None:
        if store is not None:
            remove_note(store.root)

    return EngineProcess(
        command,
        engine_environment(dict(os.environ), store.root if store is not None else None, path),
        settings.engine_log,
        forget,
    )


def _model(options: Options) -> ModelFacts:
    """One that cannot be read has no KV in common with any; SGLang says what is wrong with it."""
    try:
        return model_facts(options.get("--model-path") or options.get("--model") or "", options)
    except (OSError, ValueError) as error:
        log.warning("the model cannot be read: %s", error)
        return ModelFacts(f"unreadable-{uuid.uuid4().hex}", None)


def _free_ports(count: int) -> list[int]:
    """Free now; SGLang binds them when it starts."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
