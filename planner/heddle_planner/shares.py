"""What a worker takes of a plan, and what no plan can beat: the arithmetic that all plans share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from heddle_contracts.planning import ActiveTrajectory, PlanShare
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile

from heddle_planner.simulate.scripts import Script


@dataclass(frozen=True, slots=True)
class Shape:
    """How trajectories come, for each output token: tokens of tool results, seconds of tool gaps.
    ``context``: tokens that a trajectory holds now.
    """

    context: float = 0.0
    input_per_output: float = 0.0
    tool_seconds_per_output: float = 0.0

    @classmethod
    def of(cls, active: Sequence[ActiveTrajectory], past: Sequence[Script]) -> "Shape":
        """``past`` has at least one script."""
        output = sum(script.output for script in past)
        return cls(
            context=sum(one.context_tokens for one in active) / len(active),
            input_per_output=sum(turn.input for script in past for turn in script.turns[1:]) / output,
            tool_seconds_per_output=sum(script.tool_seconds for script in past) / output,
        )


def share_of(
    degree: int, lengths: Sequence[float], first: int, seconds: float, profile: WorkerProfile
) -> PlanShare:
    if not lengths:
        return PlanShare(degree=degree, size=0, seconds=0.0, limited_by="nothing")
    tokens = float(sum(lengths))
    batch = min(len(lengths), slots_of(profile, degree))
    limited_by: Literal["longest_trajectory", "amount_of_work"] = (
        "longest_trajectory" if lengths[0] >= tokens / batch else "amount_of_work"
    )
    return PlanShare(
        degree=degree,
        size=len(lengths),
        first_rank=first,
        longest=float(lengths[0]),
        shortest=float(lengths[-1]),
        tokens=tokens,
        seconds=seconds,
        limited_by=limited_by,
    )


def slots_of(profile: WorkerProfile, degree: int) -> int:
    known = profile.degrees[degree]
    return known.slots if isinstance(known, DegreeProfile) else len(known.F)


def token_seconds(profile: WorkerProfile, degree: int, batch: int) -> float:
    """Seconds of a token in a batch, without the price of context; on a straight line between two batches of
    the profile.
    """
    known = profile.degrees[degree]
    if not isinstance(known, DegreeProfile):
        return known.T * known.F[min(batch, len(known.F)) - 1]
    return float(np.interp(batch, known.batches, known.step_seconds))


def _most_tokens_a_second(profile: WorkerProfile, degree: int) -> float:
    """At the best batch of those that fit the slots, which lies where the profile has one or at all slots."""
    slots = slots_of(profile, degree)
    known = profile.degrees[degree]
    inner = known.batches if isinstance(known, DegreeProfile) else range(1, slots)
    batches = [batch for batch in inner if batch < slots] + [slots]
    return max(batch / token_seconds(profile, degree, batch) for batch in batches)


def lower_bound(
    lengths: Sequence[float], degrees: Sequence[int], profile: WorkerProfile, shape: Shape
) -> float:
    """max(longest alone on the fastest worker with its tools, all tokens over the best throughput of
    all workers).
    """
    alone = min(token_seconds(profile, degree, 1) for degree in degrees) + shape.tool_seconds_per_output
    rates = [_most_tokens_a_second(profile, degree) for degree in degrees]
    return max(max(lengths) * alone, sum(lengths) / sum(rates))


def digest_of(inputs: object) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
