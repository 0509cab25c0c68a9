"""Runs the gateway in this process: uvicorn with uvloop and httptools, logs as JSON lines (plain ones
on a terminal), a bounded goodbye.
"""

import gc
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from heddle_gateway.app import create_app
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.heddle_app import StartError
from heddle_gateway.open_files import raise_limit
from heddle_gateway.settings import Settings

log = logging.getLogger(__name__)

# Longer than the keep-alive of the load balancers and clients in front, who must be the ones to close: else a
# request meets a closing connection.
KEEP_ALIVE_S: Final = 75
# Connections that wait to be accepted: a rollout starts all its agents at once.
BACKLOG: Final = 4096
# A client whose host vanished without a word would keep its step, held or silent, for ever: nothing is
# written to it that could fail. TCP asks after this many seconds, this often.
TCP_KEEPALIVE_IDLE_S: Final = 60
TCP_KEEPALIVE_INTERVAL_S: Final = 15
TCP_KEEPALIVE_PROBES: Final = 4


class JsonLines(logging.Formatter):
    """One JSON object a line; what came from clients cannot break out of its string."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """For a person at a terminal. What came from clients cannot steer it."""

    def format(self, record: logging.LogRecord) -> str:
        said = f"{record.levelname.lower():<7} {record.getMessage()}"
        shown = "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in said
        )
        lines = [f"{self.formatTime(record, '%H:%M:%S')} {shown}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


# A step leaves no reference cycles (a test holds that), so a collection finds next to nothing, and it takes
# longer the more trajectories live: 0.2 s at 30,000. Rare full collections are enough for what the admin API
# leaves.
GC_THRESHOLDS: Final = (20_000, 50, 50)


class GatewayServer(uvicorn.Server):
    """Ends with its own exit code: uvicorn's would raise the signal again after a clean end."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What was imported stays for ever; no collection need look at it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams of decisions have no end of their own; running steps get their grace all the same.
        self.config.app.state.gateway.driver.feed.close()  # type: ignore[union-attr]
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def configure_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def serve(settings: Settings) -> int:
    """Until SIGTERM or SIGINT. Returns the exit code: 0 after a clean end, 1 when it could not start. Raises
    StartError for a setting that cannot be.
    """
    configure_logging()
    raise_limit()
    try:
        listening = listen(settings.host, settings.port)
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", settings.host, settings.port, error)
        return 1
    host, port = listening.getsockname()[:2]
    try:
        app = create_app(settings.model_copy(update={"port": port}))
    except StartError:
        listening.close()
        raise
    server = GatewayServer(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=GatewayProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_s)),
        )
    )
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    try:
        server.run(sockets=[listening])
    except SystemExit:
        return 1  # uvicorn's end of a start that failed; the reason is in the log
    return 0 if server.started else 1


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything starts, so that a taken port is said at once and port 0 is known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections take these over.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's own intervals serve
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, TCP_KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, TCP_KEEPALIVE_INTERVAL_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, TCP_KEEPALIVE_PROBES)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
