"""What the simulator says of a live rollout: the same trace on the same workers under the same policy, told
the same forecasts and handed the same plans at the same moments.

The simulator's seconds are emulated ones, the gateway's real ones: bounds on waiting and the period of load
reports are those of the gateway times the speed. Questions and answers between gateway and shims take no time
in a simulation, and times the speed they take longer than the transfer: what a move took beside it is told
too.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from heddle_cli.bench.rollout_arms import ArmResult
from heddle_cli.bench.rollout_journal import Shares
from heddle_cli.bench.rollout_workload import write_trace
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory

FOREVER_S: Final = 1e9
REPORT_PERIOD_S: Final = 2.0
"""Real seconds between two load reports of a worker (the gateway's default)."""


def simulated(
    results: Sequence[ArmResult],
    chosen: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    scratch: Path,
) -> dict[str, dict[str, Any]]:
    """By policy. Raises CommandFailed."""
    trace, cluster = scratch / "trace.jsonl", scratch / "cluster.json"
    write_trace(chosen, settings, trace)
    described = {
        "workers": [_worker(one, move_setup_s(results, settings.speed)) for one in results[0].servers],
        "policies": {result.policy.name: _policy(result, settings.speed) for result in results},
        "forecasts": {
            result.policy.name: result.journal.told for result in results if result.journal is not None
        },
        "plans": {
            result.policy.name: [_plan(shares, settings.speed) for shares in result.journal.shares]
            for result in results
            if result.journal is not None
        },
        "run": {
            # Agents take answers whole; a worker that has no profile is learned of as it goes.
            "streaming": False,
            "beliefs": {str(one["tp_size"]): {} for one in results[0].servers},
            "report_interval_s": REPORT_PERIOD_S * settings.speed,
        },
    }
    cluster.write_text(json.dumps(described))
    done = subprocess.run(
        [sys.executable, "-m", "heddle_cli", "forecast", str(trace), "--cluster", str(cluster)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandFailed(Exit.FAILED, f"the simulator: {done.stderr.strip()}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def _policy(result: ArmResult, speed: float) -> dict[str, Any]:
    """The gateway's policy with its times in emulated milliseconds."""
    return {
        name: round(value * speed) if name.endswith("_ms") else value
        for name, value in result.core_policy.items()
    }


def _plan(shares: Shares, speed: float) -> dict[str, Any]:
    """In emulated seconds. The gateway counts its workers from 1, in the order in which it was given them."""
    return {
        "at_s": shares.since_first_s * speed,
        "ttl_s": min(shares.ttl_s * speed, FOREVER_S),
        "partition": [{"worker": handle - 1, "size": size} for handle, size in shares.partition],
    }


def move_setup_s(results: Sequence[ArmResult], speed: float) -> float:
    """Emulated seconds that a move of KV took beside its transfer, in the arm that moved any."""
    return max(
        result.history.move_setup_s(_link_rate(result.servers[0]) * speed) * speed for result in results
    )


def _link_rate(server: Mapping[str, Any]) -> float:
    """KV tokens per emulated second."""
    return float(server["heddle_timing"]["transfer_bytes_s"] / server["heddle_timing"]["kv_token_bytes"])


def _worker(server: Mapping[str, Any], setup_s: float) -> dict[str, Any]:
    """An emulated worker's costs at its MP degree, in the simulator's words."""
    timing, degree = server["heddle_timing"], int(server["tp_size"])
    compute = degree ** timing["scaling"]
    base = timing["decode_fixed_s"] + timing["decode_weights_s"] / degree
    each = timing["decode_request_s"] / compute
    rate = _link_rate(server)
    return {
        "degree": degree,
        "slots": int(server["max_running_requests"]),
        "kv_tokens": int(server["max_total_num_tokens"]),
        "costs": {
            "batches": [1, 2],
            "step_seconds": [base + each, base + 2 * each],
            "context_token_s": timing["decode_context_s"] / degree,
            "prefill_fixed_s": timing["prefill_fixed_s"],
            "prefill_token_s": timing["prefill_token_s"] / compute,
            "prefill_pair_s": timing["prefill_context_s"] / compute,
        },
        **({"link": {"tokens_per_s": rate, "setup_s": setup_s}} if rate > 0 else {}),
    }
