"""`heddle up`: a gateway, a planner and, where no running server is named, emulated workers, until Ctrl-C.

The parts are child processes of the same interpreter, joined by their command lines only. Whatever happens,
no child outlives this process.
"""

import asyncio
import errno
import json
import os
import shlex
import signal
import socket
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from heddle_contracts.keys import first_key

from heddle_cli.child_process import Child
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.given_numbers import Degrees, Speed

# Longer than the gateway's own grace for running steps.
GATEWAY_GRACE_S = 45.0
WORKER_GRACE_S = 5.0
POLL_S = 0.05
RESTART_S = 1.0
PLANNER = "planner"

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. ``workers``: URLs of running servers; ``tp``: degrees to emulate, or None; ``planner``:
    to be started here.
    """

    host: str
    port: int
    workers: tuple[str, ...]
    tp: str | None
    config: Path | None
    speed: float
    model: str | None
    planner: bool
    gateway_options: tuple[str, ...]
    start_timeout_s: float
    agent_keys: str | None
    admin_keys: str | None

    @property
    def base_url(self) -> str:
        """Where this machine reaches the gateway."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@app.command()
def up(
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a running server; may be given more than once.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of the gateway's settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port (default 8000).")] = None,
    worker_key: Annotated[
        str | None, typer.Option(help="API key of these servers.", show_default=False)
    ] = None,
    tp: Degrees = "4,2,1,1,1",
    speed: Speed = 1.0,
    model: Annotated[str | None, typer.Option(help="Model name of the emulated workers.")] = None,
    order: Annotated[str | None, typer.Option(help="Who is next in a worker's queue.")] = None,
    placement: Annotated[str | None, typer.Option(help="Which worker a step goes to.")] = None,
    admission: Annotated[str | None, typer.Option(help="Whether a step waits in the gateway.")] = None,
    database: Annotated[str | None, typer.Option(help="SQLite file or URL of the history.")] = None,
    planner: Annotated[
        bool, typer.Option(help="Start a planner, unless the settings name a running one.")
    ] = True,
    start_timeout: Annotated[float, typer.Option(help="Seconds to wait for a ready worker.")] = 60.0,
) -> None:
    """Serve until Ctrl-C; prints the base_url to give to agents."""
    settings = _settings_of(config)
    workers = tuple(worker or ())
    has_workers = bool(workers or settings.get("workers") or os.environ.get("HEDDLE_WORKERS"))
    named = {
        "--order": order,
        "--placement": placement,
        "--admission": admission,
        "--database": database,
        "--worker-key": worker_key,
    }
    plan = Plan(
        host=host or os.environ.get("HEDDLE_HOST") or settings.get("host") or "127.0.0.1",
        port=port or _port(os.environ.get("HEDDLE_PORT") or settings.get("port") or 8000),
        workers=workers,
        tp=None if has_workers else tp,
        config=config,
        speed=speed,
        model=model,
        planner=planner and not (settings.get("planner") or os.environ.get("HEDDLE_PLANNER")),
        gateway_options=tuple(
            part for name, value in named.items() if value is not None for part in (name, value)
        ),
        start_timeout_s=start_timeout,
        agent_keys=_keys("api_keys", settings),
        admin_keys=_keys("admin_keys", settings),
    )
    asyncio.run(_serve(plan))


def _settings_of(config: Path | None) -> dict[str, Any]:
    """The file's host, port, workers and keys; the gateway judges the rest."""
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text())
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"--config {config}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--config {config}: {error}") from error


def _port(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise CommandFailed(Exit.USAGE, f"port: {value!r} is not a number") from None


def _keys(setting: str, settings: dict[str, Any]) -> str | None:
    """Keys of the gateway, as they stand in the environment; None where there are none."""
    found = os.environ.get(f"HEDDLE_{setting.upper()}") or settings.get(setting) or None
    return found if found is None or isinstance(found, str) else json.dumps(found)


def check_port_is_free(host: str, port: int) -> None:
    """Raises CommandFailed when nothing can listen there, before anything was started."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise CommandFailed(
            Exit.FAILED, f"cannot listen on {host}:{port} ({error.strerror}). Choose another {other}."
        ) from error


async def _serve(plan: Plan) -> None:
    check_port_is_free(plan.host, plan.port)
    stop = asyncio.Event()
    children: list[Child] = []
    _on_signals(stop, children)
    try:
        await _until_stopped(stop, plan, children)
    finally:
        # The gateway first: its running steps still need their workers.
        for child in reversed(children):
            await child.stop(GATEWAY_GRACE_S if child.name == "gateway" else WORKER_GRACE_S)


def _on_signals(stop: asyncio.Event, children: list[Child]) -> None:
    """The first SIGINT or SIGTERM stops in order; a second one does not wait for running steps, a third for
    nothing.
    """
    heard = 0

    def stop_or_kill() -> None:
        nonlocal heard
        heard += 1
        for child in children:
            if heard > 2 or (heard == 2 and child.name == "gateway"):
                child.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_or_kill)


async def _until_stopped(stop: asyncio.Event, plan: Plan, children: list[Child]) -> None:
    """Starts everything, then waits for the stop. Raises CommandFailed when a part ends by itself."""
    stopping = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(_start(plan, children))
    await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    starting.result()
    needed = [child for child in children if child.name != PLANNER]
    tending = asyncio.create_task(_tend_planner(children))
    await asyncio.wait({stopping, *(child.ended for child in needed)}, return_when=asyncio.FIRST_COMPLETED)
    tending.cancel()
    await asyncio.wait({tending})
    if not stop.is_set():
        dead = next(child for child in needed if child.exit_code is not None)
        stopping.cancel()
        raise CommandFailed(Exit.FAILED, f"{dead.death()}; stopping the rest")
    print("\nheddle: stopping once running steps have ended; Ctrl-C again cuts them off", flush=True)


async def _start(plan: Plan, children: list[Child]) -> None:
    workers = plan.workers
    planner: Child | None = None
    if plan.planner:
        # Beside the workers: it takes seconds to load.
        planner = await Child.start(PLANNER, ["--port", "0"], listens=True)
        children.append(planner)
    if plan.tp is not None:
        options = ["--tp", plan.tp, "--base-port", "0", "--speed", str(plan.speed)]
        options += ["--model", plan.model] if plan.model else []
        emulated = await Child.start("emulate", options, listens=True)
        children.append(emulated)
        workers = tuple((await emulated.ready_line(plan.start_timeout_s))["workers"])
    options = ["--host", plan.host, "--port", str(plan.port)]
    options += [part for url in workers for part in ("--worker", url)]
    options += ["--config", str(plan.config)] if plan.config else []
    if planner is not None:
        options += ["--planner", (await planner.ready_line(plan.start_timeout_s))["planner"]]
    gateway = await Child.start("gateway", [*options, *plan.gateway_options])
    children.append(gateway)
    models, troubles = await _wait_until_ready(plan, gateway, len(workers) if plan.tp is not None else 1)
    _greet(plan, workers, models, troubles)


async def _tend_planner(children: list[Child]) -> None:
    """Starts a planner that has ended again, in its place: steps are served meanwhile."""
    while True:
        place = next((place for place, child in enumerate(children) if child.name == PLANNER), None)
        if place is None:
            return
        planner = children[place]
        await asyncio.wait({planner.ended})
        print(f"heddle: {planner.death()}; starting it again", file=sys.stderr, flush=True)
        await asyncio.sleep(RESTART_S)
        children[place] = await planner.again()


async def _wait_until_ready(plan: Plan, gateway: Child, wanted: int) -> tuple[list[str], list[str]]:
    """Waits until ``wanted`` workers are active; returns the models served, and a line for each other worker.

    Emulated workers are all waited for. Of running servers one is enough: the rest may still be loading.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + plan.start_timeout_s
    waiting_for = "the gateway"
    keys = plan.admin_keys or plan.agent_keys
    headers = {"authorization": f"Bearer {first_key(keys)}"} if keys else {}
    async with httpx.AsyncClient(
        base_url=plan.base_url, headers=headers, trust_env=False, timeout=2.0
    ) as http:
        while loop.time() < deadline:
            if gateway.exit_code is not None:
                code = Exit.USAGE if gateway.exit_code == Exit.USAGE else Exit.FAILED
                raise CommandFailed(code, f"{gateway.death()}")
            try:
                answer = await http.get("/ready")
                active = answer.json()["workers"].get("active", 0)
                if answer.is_success and active >= wanted:
                    listed = await http.get("/v1/models")
                    models = [model["id"] for model in listed.json()["data"]] if listed.is_success else []
                    return models, await _troubles(http)
                waiting_for = f"workers ({active} of {wanted} active)"
            except httpx.TransportError:
                pass
            except (ValueError, KeyError, TypeError) as error:
                raise CommandFailed(
                    Exit.FAILED, f"{plan.base_url} does not answer like a Heddle gateway"
                ) from error
            await asyncio.sleep(POLL_S)
        waited = [f"waited {plan.start_timeout_s:g} s for {waiting_for}", *await _troubles(http)]
    raise CommandFailed(Exit.FAILED, "\n".join(waited))


async def _troubles(http: httpx.AsyncClient) -> list[str]:
    """A line for each worker that is not active, with what went wrong; none where the admin API is closed."""
    try:
        answer = await http.get("/admin/v1/workers")
        return [
            f"  {worker['url']} is {worker['state']}: {worker['last_error'] or 'no answer yet'}"
            for worker in answer.json()["items"]
            if worker["state"] != "active"
        ]
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return []


def _greet(plan: Plan, workers: tuple[str, ...], models: list[str], troubles: list[str]) -> None:
    kind = "emulated" if plan.tp is not None else "given"
    body = json.dumps({"model": (models or ["MODEL"])[0], "messages": [{"role": "user", "content": "hello"}]})
    curl = ["curl", f"{plan.base_url}/v1/chat/completions", "-H", "content-type: application/json"]
    # Whoever looks over a shoulder, or reads a log, sees no key.
    curl += ["-H", "authorization: Bearer AGENT-KEY"] if plan.agent_keys else []
    look = f"heddle trajectories ls --gateway {plan.base_url}"
    look += " --key ADMIN-KEY" if plan.admin_keys else ""
    served = f", models: {', '.join(models)}" if models else ""
    print(f"heddle is up with {len(workers) or 'configured'} {kind} workers{served}")
    for line in troubles:
        print(line)
    print(f"  base_url  {plan.base_url}/v1")
    print(f"  try       {shlex.join([*curl, '-d', body])}")
    print(f"  look      {look}")
    print("Ctrl-C stops.", flush=True)
