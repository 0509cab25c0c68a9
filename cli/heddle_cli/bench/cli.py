"""`heddle bench`: the command line."""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from heddle_cli.bench import arms as arms_module
from heddle_cli.bench import gateway_run, gateway_state, loadgen_binary, machine, peer_router
from heddle_cli.bench.arms import ArmName
from heddle_cli.bench.conversation import write_bodies
from heddle_cli.bench.errors import BenchError
from heddle_cli.bench.gateway_report import Report, print_table
from heddle_cli.bench.gateway_run import Settings
from heddle_cli.bench.rollout_cli import rollout
from heddle_cli.bench.scenarios import scenarios
from heddle_cli.bench.summary import summarise

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Measure what the gateway costs, and what it gains."
)

EXIT_FAILED = 1
EXIT_USAGE = 2


@app.callback()
def bench() -> None:
    """Measure what the gateway costs, and what it gains."""


app.command()(rollout)


@app.command()
def gateway(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the whole report to this file.")
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            help=f"Also measure this gateway: {peer_router.NAME} (installed on first use into a cache)."
        ),
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every arm is measured once in each.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.2, help="Length of each measurement.")] = 4.0,
    stream_chunks: Annotated[int, typer.Option(min=1, help="Tokens of a streamed answer.")] = 200,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a target is missed.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for logs and history of the servers; kept. Default: a temporary one."),
    ] = None,
) -> None:
    """The gateway beside the engine asked directly, and beside a peer when asked; alternating, in one run."""
    console = Console(stderr=True)
    if peer not in (None, peer_router.NAME):
        console.print(f"--peer {peer}: only {peer_router.NAME} is known.")
        raise typer.Exit(EXIT_USAGE)
    settings = Settings(connections, rounds, seconds, stream_chunks)
    try:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            report = _measure(settings, peer is not None, keep.resolve(), console)
        else:
            with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
                report = _measure(settings, peer is not None, Path(folder), console)
    except BenchError as error:
        console.print(f"[red]failed:[/red] {error}", highlight=False)
        raise typer.Exit(EXIT_FAILED) from error
    # Wide enough for the table where the output is not a terminal (a log, a pipe).
    print_table(report, Console(width=None if sys.stdout.isatty() else 132))
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if check and not all(target.met for target in report.summary.targets):
        raise typer.Exit(EXIT_FAILED)


def _measure(settings: Settings, with_peer: bool, folder: Path, console: Console) -> Report:
    if sys.platform != "linux":
        raise BenchError("Memory and CPU time are read from /proc: this benchmark needs Linux.")
    binary = loadgen_binary.find()
    before = machine.describe()
    plan = scenarios(settings.connections, settings.seconds, settings.stream_chunks)
    bodies = write_bodies(folder)
    console.print("starting the servers")
    with arms_module.running(
        binary, folder, with_peer=with_peer, stream_chunks=settings.stream_chunks
    ) as arms:
        with console.status("") as status:
            measurements = gateway_run.run(binary, arms, bodies, plan, settings.rounds, status.update)
        # One more than the load's: the request that found out that the gateway was ready.
        answered = 1 + gateway_run.requests_answered(measurements, ArmName.HEDDLE)
        state = gateway_state.settled(arms.servers[ArmName.HEDDLE].url, answered)
        peaks = {arm: server.usage().peak_mib for arm, server in arms.servers.items()}
        versions = {**arms.versions, "loadgen": loadgen_binary.version(binary).split()[-1]}
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=before,
        versions=versions,
        settings=settings,
        arms=list(peaks),
        peak_mib=peaks,
        gateway_state=state,
        summary=summarise(measurements, state),
        measurements=measurements,
    )
