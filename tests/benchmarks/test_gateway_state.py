"""What is asked of the gateway after the load."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from heddle_cli.bench.errors import BenchError
from heddle_cli.bench.gateway_state import GatewayState, settled


def stats(done: int, *, in_flight: int = 0, queued: int = 0, dropped: int = 0) -> dict[str, Any]:
    history = {
        "queued": queued,
        "spilled": 0,
        "written": done - queued - dropped,
        "dropped": dropped,
        "refused": 0,
    }
    return {"steps": {"in_flight": in_flight, "ended": {"done": done}}, "history": history}


@contextmanager
def admin(*answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """An admin API that gives these statistics one after the other, the last for ever."""
    left, asked = list(answers), list[str]()

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keeps the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_waits_for_running_steps_and_for_the_history() -> None:
    with admin(stats(9, in_flight=1), stats(10, queued=4), stats(10, dropped=1)) as (url, asked):
        assert settled(url, 10) == GatewayState(steps_done=10, history_written=9, history_lost=1)
        assert asked == ["/admin/v1/stats"] * 3


def test_another_count_than_the_loads_fails_the_run() -> None:
    with admin(stats(11)) as (url, _), pytest.raises(BenchError, match="10 answers, the gateway counts 11"):
        settled(url, 10)


def test_a_gateway_that_is_gone_is_named() -> None:
    with pytest.raises(BenchError, match="does not answer"):
        settled("http://127.0.0.1:9", 1)
