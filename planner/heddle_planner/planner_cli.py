"""``heddle planner``: forecasts and plans for a gateway, until SIGTERM or Ctrl-C."""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heddle_planner.profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from heddle_planner.predictor.protocol import Predictor

KEY_VARIABLE: Final = "HEDDLE_PLANNER_KEY"
CLOSE_S: Final = 5.0
"""How long the end waits for a refit under way."""
GC_THRESHOLDS: Final = (20_000, 50, 50)
"""As the gateway's."""

app = typer.Typer(add_completion=False)


@app.command()
def planner(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8100,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Worker profile to plan with, by name or file; without it, what the gateway has learned of"
            " its workers."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of `heddle predictor train`; the model that ships if not given."),
    ] = None,
    plan_ttl: Annotated[float, typer.Option(min=1, help="Seconds that a plan holds.")] = 120.0,
) -> None:
    """Predict lengths in tool gaps and plan who runs where; `heddle gateway --planner URL` uses it.

    HEDDLE_PLANNER_KEY: what gateways have to send as bearer token.
    """
    # Imported late: `heddle --help` lists this command without loading a web server and SciPy.
    from heddle_planner.live_profile import LEARNED
    from heddle_planner.observed import Observed
    from heddle_planner.predictor.online import OnlinePredictor
    from heddle_planner.predictor.protocol import PredictorError
    from heddle_planner.service import ServiceSettings, create_app

    try:
        known = load_profile(profile) if profile is not None else None
    except ProfileError as error:
        typer.echo(f"heddle planner: --profile: {error}", err=True)
        raise typer.Exit(2) from error
    try:
        first = _first_model(model)
    except PredictorError as error:
        typer.echo(f"heddle planner: --model: {error}", err=True)
        raise typer.Exit(2) from error
    predictor = OnlinePredictor(first)
    settings = ServiceSettings(
        profile=known,
        profile_name=profile_name(profile) if profile is not None else LEARNED,
        plan_ttl_s=plan_ttl,
        key=os.environ.get(KEY_VARIABLE) or None,
    )
    try:
        listening = _listen(host, port)
    except OSError as error:
        typer.echo(f"heddle planner: cannot listen on {host}:{port}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    observed = Observed(predictor, predictor.learn)
    predictor.running = observed.unfinished
    _serve(create_app(observed, settings, lambda: predictor.close(CLOSE_S)), listening)


def _first_model(folder: Path | None) -> "Predictor":
    """The model to begin with. Without one that ships, what was seen of the same prompt speaks. Raises
    PredictorError.
    """
    from heddle_planner.predictor import models
    from heddle_planner.predictor.history import History

    if folder is None and not (models.DEFAULT / "model.json").is_file():
        return History()
    return models.load(folder or models.DEFAULT).predictor


def profile_name(spec: str) -> str:
    """How plans name a profile that was given by name, file or in full."""
    return "given in full" if spec.lstrip().startswith("{") else Path(spec).stem


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError:
        listening.close()
        raise
    return listening


def collect_rarely() -> None:
    """What was loaded so far is left to itself, and the rest is seldom looked at: steps leave no reference
    cycles (a test holds that), and a full collection takes longer the more trajectories run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _serve(application: object, listening: socket.socket) -> None:
    import uvicorn

    class PlannerServer(uvicorn.Server):
        """Says that it is ready once it is, and ends with its own exit code."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            collect_rarely()
            host, port = listening.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            sys.stdout.write(json.dumps({"ready": True, "planner": f"http://{shown}:{port}"}) + "\n")
            sys.stdout.flush()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn would raise the signal again after a clean end.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
            yield

    server = PlannerServer(
        uvicorn.Config(
            application,  # type: ignore[arg-type]
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
    )
    server.run(sockets=[listening])
