"""``heddle emulate``: starts emulated workers and says where they listen."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from heddle_shim.emulator.answer import LengthRule
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.fleet_server import FleetServer, PortTakenError, build_workers
from heddle_shim.emulator.synthetic_page import MOVED_PAGE_TOKENS
from heddle_shim.emulator.timing import ProfileError, TimingProfile
from heddle_shim.emulator.worker import EmulatedWorker, WorkerSettings

MAX_WORKERS: Final = 64

app = typer.Typer(add_completion=False)


def parse_degrees(value: str) -> list[int]:
    """MP degrees from "4,2,1,1,1", one worker each."""
    try:
        degrees = [int(part) for part in value.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a list of numbers such as 4,2,1,1,1") from None
    if not degrees or min(degrees) < 1 or len(degrees) > MAX_WORKERS:
        raise typer.BadParameter(f"give 1 to {MAX_WORKERS} degrees of at least 1")
    return degrees


@app.command()
def emulate(
    tp: Annotated[str, typer.Option(help="MP degree of each worker, for example 4,2,1,1,1.")] = "1",
    base_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Worker i listens on this port + i; 0 takes free ports.")
    ] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    speed: Annotated[float, typer.Option(help="Simulated seconds per real second.")] = 1.0,
    model: Annotated[str, typer.Option(help="Name of the served model.")] = "heddle-emulated-8b",
    slots: Annotated[int, typer.Option(min=1, help="max_running_requests of each worker.")] = 64,
    kv_tokens: Annotated[
        int | None,
        typer.Option(min=64, help="KV pool of each worker in tokens; by default what its GPUs hold."),
    ] = None,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV page.")] = 1,
    chunked_prefill_size: Annotated[
        int, typer.Option(min=1, help="Most tokens of one prefill batch.")
    ] = 8192,
    context_length: Annotated[int, typer.Option(min=64, help="Context of the model in tokens.")] = 262_144,
    length: Annotated[
        LengthRule,
        typer.Option(help="Who decides an answer's length: max_tokens exactly, or a natural draw."),
    ] = LengthRule.MAX_TOKENS,
    profile: Annotated[
        Path | None, typer.Option(help="JSON file of timing constants; see timing.py.")
    ] = None,
    priority: Annotated[
        bool, typer.Option(help="Priority scheduling, as --enable-priority-scheduling.")
    ] = True,
    priority_threshold: Annotated[
        int, typer.Option(min=0, help="Preempt only what is worse by more than this.")
    ] = 10,
    max_queued: Annotated[int | None, typer.Option(min=1, help="Bound of the waiting queue.")] = None,
    moved_page: Annotated[
        int,
        typer.Option(
            min=1,
            help="Tokens of a page that moves to another worker. Large ones cost this machine less, which"
            " matters at high speed.",
        ),
    ] = MOVED_PAGE_TOKENS,
    disconnect_delay: Annotated[
        float, typer.Option(min=0, help="Real seconds from a hang-up to the abort; SGLang needs 2 to 4.")
    ] = 0.0,
) -> None:
    """Start emulated SGLang workers in this process, one port each, until SIGTERM or Ctrl-C."""
    degrees = parse_degrees(tp)
    if not speed > 0:
        raise typer.BadParameter("must be above 0", param_hint="--speed")
    if base_port + len(degrees) > 65536:
        raise typer.BadParameter("too high for that many workers", param_hint="--base-port")
    try:
        timing = TimingProfile.from_file(profile) if profile is not None else TimingProfile()
        engine = EngineConfig(
            max_running_requests=slots,
            page_size=page_size,
            chunked_prefill_size=chunked_prefill_size,
            max_queued_requests=max_queued,
            enable_priority_scheduling=priority,
            priority_scheduling_preemption_threshold=priority_threshold,
        )
        settings = WorkerSettings(
            model=model,
            context_length=context_length,
            length_rule=length,
            disconnect_delay_s=disconnect_delay,
            moved_page=moved_page,
            engine=engine,
        )
        workers = build_workers(degrees, settings=settings, kv_tokens=kv_tokens, profile=timing, speed=speed)
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(_serve(workers, host, base_port))
    except (ProfileError, PortTakenError, ValueError) as error:
        typer.echo(f"heddle emulate: {error}", err=True)
        raise typer.Exit(1) from error


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; None for asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


async def _serve(workers: list[EmulatedWorker], host: str, base_port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with FleetServer(workers, host, base_port) as server:
        sys.stdout.write(json.dumps({"ready": True, "workers": server.urls, "shims": server.urls}) + "\n")
        sys.stdout.flush()
        await stop.wait()
