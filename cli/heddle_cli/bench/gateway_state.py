"""What the gateway itself says after the load: nothing was switched off or lost while it was measured."""

import time
from dataclasses import dataclass
from typing import Any

import httpx

from heddle_cli.bench.errors import BenchError

_SETTLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayState:
    """Counts of the whole run: steps served, and where their history records are."""

    steps_done: int
    history_written: int
    history_lost: int


def _read(client: httpx.Client, url: str) -> dict[str, Any]:
    try:
        answer = client.get(f"{url}/admin/v1/stats")
    except httpx.TransportError as error:
        raise BenchError(f"The gateway does not answer GET /admin/v1/stats: {error}") from error
    if answer.status_code != httpx.codes.OK:
        raise BenchError(f"GET /admin/v1/stats answered {answer.status_code}: {answer.text[:200]}")
    stats: dict[str, Any] = answer.json()
    return stats


def settled(url: str, expected_steps: int) -> GatewayState:
    """Waits until no step runs and the history queue is empty, then compares the counts.

    `expected_steps`: requests that were answered. Raises BenchError when the gateway counted otherwise.
    """
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    with httpx.Client(trust_env=False, timeout=10.0) as client:
        while True:
            stats = _read(client, url)
            steps, history = stats["steps"], stats["history"]
            if steps["in_flight"] == 0 and history["queued"] == 0 and history["spilled"] == 0:
                break
            if time.monotonic() > deadline:
                raise BenchError(f"The gateway did not come to rest within {_SETTLE_TIMEOUT_S:g} s: {stats}")
            time.sleep(0.1)
    done = steps["ended"].get("done", 0)
    if done != expected_steps:
        raise BenchError(
            f"The load had {expected_steps} answers, the gateway counts {done} steps done: {steps}"
        )
    return GatewayState(done, history["written"], history["dropped"] + history["refused"])
