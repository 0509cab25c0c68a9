"""Two ends that close an idle connection at the same moment lose a request; so each end has its turn."""

import socket
from typing import Any

from heddle_gateway.serving import KEEP_ALIVE_S, TCP_KEEPALIVE_IDLE_S, listen
from heddle_gateway.settings import load_settings

# uvicorn's own, which SGLang and vLLM run on.
WORKERS_KEEP_ALIVE_S = 5.0
# What load balancers and the SDKs' connection pools keep, and nginx' default.
LONGEST_OF_CLIENTS_S = 75


def test_the_gateway_outwaits_its_clients_and_leaves_before_its_workers() -> None:
    assert KEEP_ALIVE_S >= LONGEST_OF_CLIENTS_S
    assert load_settings().worker_keepalive_s < WORKERS_KEEP_ALIVE_S


async def test_an_idle_connection_is_used_again_by_the_next_step(gateway: Any, worker: Any) -> None:
    before = worker.accepted
    for number in range(5):
        assert (await gateway.chat(f"task {number}")).status_code == 200
    # Probes keep a connection of their own.
    assert worker.accepted - before <= 2


def test_tcp_looks_after_clients_whose_host_may_have_vanished() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == TCP_KEEPALIVE_IDLE_S
