"""What is simulated is what runs: on the same trace the live driver with emulated workers, on a loop with
simulated time, takes the decisions that the simulator took, one by one.

The two share the core and nothing else: agents, workers, timers and the order of what happens at one moment
are two programs. Same: arrivals, tool times, tokens, predictions, and what workers truly do.
"""

import json
import random
from itertools import zip_longest
from typing import Any, Final

import heddle_core
import pytest

from .live_cluster import PLAN_TTL_MS, predictions_in, run_live
from .same_trace import Case, scripts_of, spec_of

CLOCK_US: Final = 2
"""Times are whole microseconds on both sides, rounded up from sums that are taken in another order."""

HEDDLE: Final = {"placement": "by_rank", "order": "longest_first", "admission": "working_set"}
CASES: Final = {
    "heddle, unlike workers": Case([4, 1, 1], slots=6, kv_tokens=60_000, policy=HEDDLE, trajectories=60),
    "heddle, short of slots": Case([1, 1], slots=3, kv_tokens=60_000, policy=HEDDLE, trajectories=40),
    "heddle, short of KV": Case([2, 1], slots=16, kv_tokens=14_000, policy=HEDDLE, trajectories=40),
    "heddle moves KV in tool gaps": Case(
        [4, 1, 1],
        slots=8,
        kv_tokens=200_000,
        policy=HEDDLE | {"prior_mean_tokens": 400},
        trajectories=60,
        link=(200_000.0, 0.001),
        shares=(2, 29, 29),
    ),
    "the paper's rule moves KV with each rank": Case(
        [4, 1],
        slots=8,
        kv_tokens=200_000,
        policy=HEDDLE | {"migration": "on_rank_change"},
        trajectories=40,
        link=(20_000.0, 0.0),
        shares=(1, 3),
    ),
    "sticky": Case(
        [2, 1],
        slots=4,
        kv_tokens=60_000,
        policy={"placement": "sticky", "order": "fcfs", "admission": "slots"},
        trajectories=40,
    ),
    "least load": Case(
        [1, 1, 1],
        slots=4,
        kv_tokens=60_000,
        policy={"placement": "least_load", "order": "shortest_first", "admission": "unlimited"},
        trajectories=40,
    ),
}


def trace_of(case: Case, seed: int) -> list[Any]:
    """Scripts by start, no two at one moment; groups are numbered as they come, from 1."""
    scripts = sorted(scripts_of(case, seed), key=lambda script: script[2])
    draw = random.Random(seed)
    groups: dict[int, int] = {}
    found = []
    start = 0.0
    for prompt, group, _, turns in scripts:
        start = round(start + draw.uniform(0.001, 0.05), 6)
        found.append((prompt, groups.setdefault(group, len(groups) + 1), start, turns))
    return found


def simulated(case: Case, scripts: list[Any], seed: int, prediction: str) -> tuple[dict[str, Any], bytes]:
    """Report and journal."""
    spec = spec_of(case, seed) | {
        "policy": case.policy,
        "prediction": PREDICTIONS[prediction],
        "beliefs": {str(degree): {} for degree in case.degrees},
        "streaming": False,
        "report_interval_s": 1e6,
    }
    if case.link is not None:
        rate, setup = case.link
        for truth in spec["truth"].values():
            truth["link"] = {"tokens_per_s": rate, "setup_s": setup}
    if case.shares:
        partition = [{"worker": worker, "size": size} for worker, size in enumerate(case.shares)]
        spec["plan"] = {"version": 1, "partition": partition, "ttl_ms": PLAN_TTL_MS}
    report, journal = heddle_core.simulate(heddle_core.SimWorkload(scripts), json.dumps(spec))
    return json.loads(report), journal


PREDICTIONS: Final[dict[str, dict[str, Any]]] = {
    "oracle": {"kind": "oracle"},
    "calibrated": {"kind": "calibrated", "first": 1.0, "least": 0.3},
}


def told(journal: bytes, *, first_trajectory: int, linked: bool) -> list[tuple[int, dict[str, Any]]]:
    """(now, event) in order, trajectories counted from 0. A live worker is told of before its link is known:
    only what is said last of it at the start counts. Timers are left out.
    """
    found = []
    for line in journal.splitlines()[1:]:
        entry = json.loads(line)
        event = entry.get("event")
        if event is None:
            continue
        [(kind, fields)] = event.items()
        if kind == "worker_up":
            fields.pop("profile")
            if linked and "link" not in fields:
                continue
        if "trajectory" in fields:
            fields["trajectory"] -= first_trajectory
        found.append((entry["now"], {kind: fields}))
    return found


def decisions(header: bytes, events: list[tuple[int, dict[str, Any]]]) -> str:
    """Digest of all that a core decides when it is told this."""
    lines = [json.dumps({"now": now, "event": event}).encode() for now, event in events]
    digest: str = heddle_core.replay(b"\n".join([header, *lines]))["digest"]
    return digest


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("name", CASES)
def test_the_live_driver_decides_as_the_simulator_did(name: str, prediction: str, seed: int) -> None:
    case = CASES[name]
    scripts = trace_of(case, seed)
    report, journal = simulated(case, scripts, seed, prediction)
    live = run_live(case, scripts, case.policy, predictions_in(journal))
    in_sim = told(journal, first_trajectory=0, linked=case.link is not None)
    alive = told(live, first_trajectory=1, linked=case.link is not None)
    for index, (one, other) in enumerate(zip_longest(in_sim, alive)):
        assert None not in (one, other), f"event {index}: {one} and {other}"
        assert other[1] == one[1], f"event {index} at {one[0]} and {other[0]}"
        assert abs(other[0] - one[0]) <= CLOCK_US, f"event {index}: {one} and {other}"
    header = journal.splitlines()[0]
    assert decisions(header, alive) == decisions(header, in_sim)
    if case.link is None:
        # Nothing is renumbered on the way: the live core's own decisions, timers included.
        assert heddle_core.replay(live)["digest"] == report["digest"]
    else:
        assert report["migrations"]["landed"] > 0
    if "short" in name:
        assert report["queue_s_mean"] > 0
