"""A worker profile from what a gateway's core has learned of its live workers.

The core believes a straight line: a token takes so long alone, so much longer for each request of the batch
and for each token of context, all scaled by what it has seen its workers do. So a plan is made in the seconds
that the workers really take, without a profile having been measured; `heddle profile` measures a better one.
"""

from collections.abc import Sequence
from typing import Final

from heddle_contracts.planning import PlanWorker
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile

LEARNED: Final = "learned from the live workers"
"""What plans call such a profile."""
UNKNOWN_KV_TOKENS: Final = 1_000_000_000
"""Stands for a KV pool of unknown size, which the core takes for large enough too."""


def profile_of(workers: Sequence[PlanWorker]) -> WorkerProfile:
    """One degree for each that there is; workers of one degree are taken together. Raises ValueError without
    workers.
    """
    by_degree: dict[int, list[PlanWorker]] = {}
    for worker in workers:
        by_degree.setdefault(worker.degree, []).append(worker)
    if not by_degree:
        raise ValueError("workers: none is live; give lengths and a profile to plan without them")
    return WorkerProfile(
        made_by="hand",
        sources={"all": "learned from the live workers by the gateway's decision core"},
        degrees={degree: _degree(alike) for degree, alike in sorted(by_degree.items())},
    )


def _degree(workers: Sequence[PlanWorker]) -> DegreeProfile:
    slots = min(worker.slots for worker in workers)
    batches = [1]
    while batches[-1] * 2 < slots:
        batches.append(batches[-1] * 2)
    if slots > 1:
        batches.append(slots)
    alone = _mean([worker.token_us for worker in workers])
    company = _mean([worker.token_us_per_seq for worker in workers])
    return DegreeProfile(
        batches=tuple(batches),
        step_seconds=tuple((alone + company * batch) / 1e6 for batch in batches),
        seconds_per_context_token=_mean([worker.token_us_per_context_token for worker in workers]) / 1e6,
        prefill_tokens_per_second=_mean([worker.prefill_tokens_per_s for worker in workers]),
        kv_tokens=min(worker.kv_tokens or UNKNOWN_KV_TOKENS for worker in workers),
        slots=slots,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
