"""What workers truly are in a simulation, and how GPUs are cut into workers.

The truth is a worker profile in its full form. Beyond it: a prefill batch takes at least one reading of the
weights, which is the decode step at batch 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile

KV_SHARE: Final = 0.9
"""Share of the smallest worker's KV that a trajectory may grow to: every policy at every degree must be
able to run it."""


TRANSFER_SETUP_S: Final = 0.005
"""Seconds that a KV transfer takes whatever it moves: a request to the source's shim, and its handshake with
the target's.
"""


class FleetError(ValueError):
    """A profile that cannot be simulated, or GPUs that cannot be cut as asked."""


def truth_of(
    profile: WorkerProfile, *, degrees: Sequence[int], kv_scale: float, slots: int | None
) -> dict[str, Any]:
    """The simulator's ``truth`` for these degrees. ``slots`` overrides the profile's. Raises FleetError."""
    truth: dict[str, Any] = {}
    for degree in degrees:
        known = profile.degrees.get(degree)
        if known is None:
            raise FleetError(f"the profile has no MP degree {degree}; it has {sorted(profile.degrees)}")
        if not isinstance(known, DegreeProfile):
            raise FleetError(
                f"degrees.{degree} has only T and F; a simulation needs batches, step_seconds and slots"
            )
        if known.prefill_tokens_per_second <= 0 or known.kv_tokens <= 0:
            raise FleetError(f"degrees.{degree} must give prefill_tokens_per_second and kv_tokens")
        truth[str(degree)] = {
            "costs": {
                "batches": list(known.batches),
                "step_seconds": list(known.step_seconds),
                "context_token_s": known.seconds_per_context_token,
                "prefill_fixed_s": known.step_seconds[0],
                "prefill_token_s": 1.0 / known.prefill_tokens_per_second,
                "prefill_pair_s": 0.0,
            },
            "slots": slots or known.slots,
            "kv_tokens": max(1, round(known.kv_tokens * kv_scale)),
        }
        if known.transfer_tokens_per_second > 0:
            truth[str(degree)]["link"] = {
                "tokens_per_s": known.transfer_tokens_per_second,
                "setup_s": TRANSFER_SETUP_S,
            }
    return truth


def single_degree(gpus: int, degree: int) -> list[int]:
    """As many workers of ``degree`` as fit."""
    return [degree] * (gpus // degree)


@dataclass(frozen=True, slots=True)
class GpuLoss:
    """A GPU that is lost, and with it the worker that it is part of. Seconds after the start; ``back``
    None for ever.
    """

    gpu: int
    at: float
    back: float | None = None

    def of_worker(self, workers: Sequence[int]) -> dict[str, Any]:
        """The simulator's ``losses`` entry for workers of these degrees, which take GPUs in their order.

        Raises FleetError when no worker has this GPU.
        """
        first = 0
        for index, degree in enumerate(workers):
            if first <= self.gpu < first + degree:
                return {"worker": index, "at_s": self.at, "back_s": self.back}
            first += degree
        raise FleetError(f"--lose: there is no GPU {self.gpu}; workers have {first}")


def parse_loss(text: str) -> GpuLoss:
    """A loss written ``GPU@SECONDS`` or ``GPU@SECONDS:BACK``. Raises FleetError."""
    gpu, at_sign, times = text.partition("@")
    at, _, back = times.partition(":")
    try:
        loss = GpuLoss(int(gpu), float(at), float(back) if back else None)
    except ValueError as error:
        raise FleetError(f"--lose: {text!r} must read GPU@SECONDS or GPU@SECONDS:BACK") from error
    if not at_sign or loss.gpu < 0 or loss.at < 0 or (loss.back is not None and loss.back <= loss.at):
        raise FleetError(f"--lose: {text!r} must have GPU >= 0 and 0 <= SECONDS < BACK")
    return loss


def usual_degree(truth: dict[str, Any], context: int) -> int:
    """What a careful operator takes without a planner: the smallest degree whose KV holds four
    trajectories of the largest context. Stands for the paper's setting of its baselines, which is one
    degree a model.
    """
    for degree in sorted(truth, key=int):
        if truth[degree]["kv_tokens"] >= 4 * context:
            return int(degree)
    return max(int(degree) for degree in truth)


def most_context(truth: Mapping[str, Any]) -> int:
    """Tokens of context that a trajectory may have on any of these workers."""
    return int(KV_SHARE * min(one["kv_tokens"] for one in truth.values()))


def parse_workers(text: str) -> list[int]:
    """Workers from a list of their MP degrees such as ``2,1,1``, highest first. Raises FleetError."""
    try:
        workers = sorted((int(part) for part in text.split(",")), reverse=True)
    except ValueError as error:
        raise FleetError(f"--workers: {text!r} is no list of degrees such as 2,1,1") from error
    if workers[-1] < 1:
        raise FleetError(f"--workers: {text!r} must be degrees of at least 1")
    return workers


def parse_degrees(text: str) -> list[int]:
    """MP degrees from a list such as ``1,2,4,8``, ascending. Raises FleetError."""
    try:
        degrees = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise FleetError(f"--degrees: {text!r} is no list of numbers such as 1,2,4,8") from error
    if degrees[0] < 1:
        raise FleetError(f"--degrees: {text!r} must be numbers of at least 1")
    return degrees
