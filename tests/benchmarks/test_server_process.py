"""Starting the servers of a benchmark, and what is said when one does not start."""

import os
import sys
from pathlib import Path

import pytest
from heddle_cli.bench.errors import BenchError
from heddle_cli.bench.server_process import ServerProcess, free_port

# Answers the first request with 503, as a gateway without a worker, and later ones with 200.
LATE = """
import http.server, sys
class Late(http.server.BaseHTTPRequestHandler):
    seen = 0
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Late.seen += 1
        self.send_response(503 if Late.seen == 1 else 200)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Late).serve_forever()
"""


def server(script: str, folder: Path, ready_timeout_s: float = 20.0) -> ServerProcess:
    port = free_port()
    command = [sys.executable, "-c", script, str(port)]
    return ServerProcess("late", command, f"http://127.0.0.1:{port}", folder, ready_timeout_s=ready_timeout_s)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_a_server_counts_as_started_when_it_answers_chat_and_is_gone_afterwards(tmp_path: Path) -> None:
    with server(LATE, tmp_path) as started:
        started.check_alive()
        assert started.usage().peak_mib > 1.0
        with pytest.raises(BenchError, match="was not started"):
            server(LATE, tmp_path).usage()
    with pytest.raises(BenchError, match="ended with"):
        started.check_alive()


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"late ended with 3(.|\n)*no model"),
        server("import sys; print('no model'); sys.exit(3)", tmp_path),
    ):
        pass


def test_a_server_that_never_answers_is_given_up_and_stopped(tmp_path: Path) -> None:
    silent = """
import os, time
open('pid', 'w').write(str(os.getpid()))
print('loading', flush=True)
time.sleep(60)
"""
    with (
        pytest.raises(BenchError, match=r"gave no answer within 2 s(.|\n)*loading"),
        server(silent, tmp_path, 2.0),
    ):
        pass
    assert not is_alive(int((tmp_path / "pid").read_text()))
