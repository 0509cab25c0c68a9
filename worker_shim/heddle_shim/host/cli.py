"""``heddle host``: offers this machine's GPUs to the resource manager, until SIGTERM or Ctrl-C."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import typer
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_contracts.keys import first_key

from heddle_shim.emulator.cli import parse_degrees
from heddle_shim.emulator.clock import ScaledClock
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.timing import ProfileError, TimingProfile
from heddle_shim.emulator.worker import WorkerSettings
from heddle_shim.engine_flags import FlagsRefused, Options
from heddle_shim.gateway_urls import gateway_urls
from heddle_shim.host.gateways import Gateways
from heddle_shim.host.gpus import NoRoom, named
from heddle_shim.host.host import Host
from heddle_shim.host.launching import EmulatedLauncher, Launcher, ShimLauncher
from heddle_shim.host.routes import HostRoutes
from heddle_shim.http_server import AppServer

KEY_VARIABLE: Final = "HEDDLE_HOST_KEY"
DEVICES_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"

app = typer.Typer(add_completion=False)


@app.command()
def host(
    gpus: Annotated[
        int, typer.Option(min=1, help="GPUs that engines may use, of those that CUDA_VISIBLE_DEVICES names.")
    ],
    gateway: Annotated[
        list[str],
        typer.Option(help="Gateway to serve; may be given more than once.", callback=gateway_urls),
    ],
    launch: Annotated[
        str | None,
        typer.Option(help='SGLang\'s options without degree and port, such as "--model-path /models/qwen3".'),
    ] = None,
    emulated: Annotated[bool, typer.Option("--emulated", help="Emulated engines instead of SGLang.")] = False,
    degrees: Annotated[
        str | None, typer.Option(help="MP degrees of the engines to begin with, such as 1,1,1,1.")
    ] = None,
    address: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 31800,
    advertise: Annotated[
        str | None, typer.Option(help="Host name by which gateways reach the engines.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this host; its host name if not given.")] = None,
    base_port: Annotated[
        int, typer.Option(min=1, max=65000, help="The engine on GPU g listens on this port + g.")
    ] = 30000,
    engine_command: Annotated[
        str | None, typer.Option(help="What starts SGLang; see `heddle shim --engine-command`.")
    ] = None,
    log_folder: Annotated[Path, typer.Option(help="Folder for the engines' logs.")] = Path(),
    start_timeout: Annotated[float, typer.Option(min=1, help="Seconds that an engine may take.")] = 1800.0,
    drain_timeout: Annotated[float, typer.Option(min=1, help="Seconds for steps that still run.")] = 600.0,
    gateway_key: Annotated[
        str | None,
        typer.Option(envvar="HEDDLE_ADMIN_KEYS", help="Admin key of the gateways; the first one of a list."),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the emulated model.")] = "heddle-emulated-8b",
    speed: Annotated[float, typer.Option(help="Simulated seconds per real second.")] = 1.0,
    slots: Annotated[int, typer.Option(min=1, help="max_running_requests of emulated engines.")] = 64,
    start_seconds: Annotated[float, typer.Option(min=0, help="What an emulated start takes.")] = 0.0,
) -> None:
    """Offer this machine's GPUs: `heddle fleet` starts, drains and re-shapes the engines here.

    HEDDLE_HOST_KEY: what callers have to send as bearer token.
    """
    key = first_key(gateway_key) if gateway_key else None
    if emulated == (launch is not None):
        raise typer.BadParameter("give either --launch or --emulated")
    if launch is not None:
        try:
            Options.parse(launch)
        except FlagsRefused as error:
            raise typer.BadParameter(str(error)) from error
    if not speed > 0:
        raise typer.BadParameter("must be above 0", param_hint="--speed")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    reached_at = advertise or ("127.0.0.1" if address in {"127.0.0.1", "localhost"} else socket.getfqdn())
    launcher: Launcher
    if launch is None:
        launcher = EmulatedLauncher(
            WorkerSettings(model=model, engine=EngineConfig(max_running_requests=slots)),
            TimingProfile(),
            ScaledClock(speed),
            address,
            start_s=start_seconds,
        )
    else:
        passed = ["--host", address, "--advertise", reached_at]
        for one in gateway:
            passed += ["--gateway", one]
        if engine_command is not None:
            passed += ["--engine-command", engine_command]
        try:
            devices = named(gpus, os.environ.get(DEVICES_VARIABLE))
        except NoRoom as error:
            raise CommandFailed(Exit.FAILED, f"host: {error}") from error
        launcher = ShimLauncher(
            launch,
            passed,
            listen=address,
            gateway_key=key,
            base_port=base_port,
            log_folder=log_folder,
            start_timeout_s=start_timeout,
            devices=devices,
        )
    offered = Host(
        name or socket.gethostname(),
        gpus,
        launcher,
        Gateways(gateway, key),
        emulated=emulated,
        drain_s=drain_timeout,
        join_s=start_timeout,
    )
    try:
        asyncio.run(_serve(offered, address, port, parse_degrees(degrees) if degrees else []))
    except (ProfileError, NoRoom, OSError) as error:
        raise CommandFailed(Exit.FAILED, f"host: {error}") from error


async def _serve(host: Host, address: str, port: int, degrees: list[int]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(host.close)
        listener = socket.create_server((address, port), backlog=64)
        listener.setblocking(False)
        stack.callback(listener.close)
        routes = HostRoutes(host, os.environ.get(KEY_VARIABLE) or None)
        await stack.enter_async_context(AppServer(routes.app(), listener))
        # Large ones first: the small fill what is left.
        for degree in sorted(degrees, reverse=True):
            host.start(degree, None)
        url = f"http://{address}:{listener.getsockname()[1]}"
        sys.stdout.write(json.dumps({"ready": True, "host": url}) + "\n")
        sys.stdout.flush()
        await stop.wait()
