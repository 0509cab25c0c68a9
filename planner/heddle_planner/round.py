"""One round of planning: a window of what is live and what was seen, in; a plan, out.

    window ─▶ solver (exact, lexicographic) ─▶ rehearsal against the simplest placements ─▶ Plan

Pure: no I/O, no clock, nothing random that is not seeded by the inputs. Plans for given
lengths, without live workers, are `given_lengths`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from heddle_contracts.planning import (
    ActiveTrajectory,
    Alternative,
    CostName,
    Plan,
    PlanMaking,
    PlanReason,
    PlanShare,
    PlanWorker,
)
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile
from heddle_core import SolvedPlan, solve

from heddle_planner.live_profile import LEARNED, profile_of
from heddle_planner.rehearsal import Stage, Way, rehearse
from heddle_planner.shares import Shape, digest_of, lower_bound, share_of
from heddle_planner.simulate.fleet import KV_SHARE, truth_of
from heddle_planner.simulate.scripts import Script, Turn

SIMPLEST: Final = ("by_rank", "sticky", "least_load")
"""Placements that a plan has to beat, and what runs where it does not."""
FALLBACKS: Final = ("by_rank", "sticky")
"""What can run for long without a plan; least load throws KV away at every step."""
PLANNED: Final = "by_rank"
"""The placement that shares are for, and what runs without any plan."""
LEAST_GAIN: Final = 1.1
"""How many times faster than that placement without shares another way must rehearse to take its place. Every
change moves trajectories, and the futures that a rehearsal draws are guesses: without this, plans made on the
way cost a rollout 1 % (docs/policy-lab.md)."""
UNKNOWN: Final = Script(
    prompt=1_000,
    turns=(Turn(input=0, output=250, tool_seconds=1.0), Turn(200, 250, 1.0), Turn(200, 250, 0.0)),
)
"""Stands for how trajectories come while none has been seen: short steps, tools of a second."""
UNTRAINED_ERROR: Final = 1.0
"""Spread of the logarithm that an estimate has before any of them could be checked."""


class RoundError(ValueError):
    """What is asked cannot be planned; the message begins with the field at fault."""


class NothingLive(RoundError):
    """There is nothing to plan now."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a round looks at. ``past``: trajectories that are over, as scripts; ``error``: the predictor's
    own, the standard deviation of the logarithm of remaining lengths, None while unknown; ``policy``: the
    core's policy in force; ``profile``: the operator's, and its name, else what is learned from the workers
    is used.
    """

    workers: Sequence[PlanWorker]
    active: Sequence[ActiveTrajectory]
    past: Sequence[Script] = ()
    error: float | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    profile: WorkerProfile | None = None
    profile_name: str = LEARNED


def plan_round(
    window: Window, now: float, *, reason: PlanReason = PlanReason.REQUEST, ttl_s: float = 120.0
) -> Plan:
    """The best way that was found to run what is live. ``now``: seconds of the Unix epoch. Raises
    RoundError.
    """
    if not window.active:
        raise NothingLive("lengths: no trajectory is live; give lengths to plan for")
    if not window.workers:
        raise NothingLive("workers: none is live; add one, or give lengths and a profile")
    workers = sorted(window.workers, key=_by_degree)
    active = sorted(window.active, key=lambda one: (-one.remaining, one.tenant, one.trajectory_id))
    profile = _fitting(window)
    degrees = [worker.degree for worker in workers]
    error = window.error if window.error is not None else UNTRAINED_ERROR
    digest = _digest(window, active)
    past = window.past or (UNKNOWN,)
    shape = Shape.of(active, past)
    cost: CostName = "simulated" if profile.has_steps else "size_only"
    started = time.perf_counter()
    try:
        solved = _solve(active, degrees, profile, cost, error, shape)
    except ValueError as fault:
        raise RoundError(str(fault)) from fault
    solve_seconds = time.perf_counter() - started
    placed = _on_workers(solved, workers)
    shares, members, first = [], [], 0
    for worker, size, seconds in placed:
        group = active[first : first + size]
        shares.append(_share(worker, group, first, seconds, profile))
        members.append(tuple(one.trajectory_id for one in group))
        first += size
    started = time.perf_counter()
    alternatives = _rehearsed(window, workers, active, past, placed, profile, error, int(digest[:8], 16))
    rehearsal_seconds = time.perf_counter() - started
    best = chosen(alternatives)
    with_shares = best is None or best.with_plan
    return Plan(
        reason=reason,
        making=PlanMaking.SHARES if with_shares else PlanMaking.NO_SHARES,
        live=True,
        made_at=now,
        expires_at=now + ttl_s,
        inputs_digest=digest,
        trajectories=len(active),
        gpus=sum(degrees),
        shape=tuple(share.degree for share in shares),
        profile=window.profile_name,
        solver="exact",
        cost=cost,
        placement=PLANNED if best is None or with_shares else best.placement,
        fallback_placement=fallback(alternatives),
        expected_makespan_s=best.expected_makespan_s if best is not None else solved["makespan"],
        lower_bound_s=lower_bound([one.remaining for one in active], degrees, profile, shape),
        solve_seconds=solve_seconds,
        rehearsal_seconds=rehearsal_seconds,
        shares=tuple(shares),
        alternatives=tuple(alternatives),
        members=tuple(members),
    )


def chosen(alternatives: Sequence[Alternative]) -> Alternative | None:
    """The quickest, or what runs without any plan where that is nearly as quick. ``alternatives``: best
    first.
    """
    if not alternatives:
        return None
    best = alternatives[0]
    plain = next(one for one in alternatives if one.name == PLANNED)
    pays = plain.expected_makespan_s > LEAST_GAIN * best.expected_makespan_s
    return best if pays else plain


def fallback(alternatives: Sequence[Alternative]) -> str:
    """The placement for when no plan follows; one that is hardly quicker changes nothing then either."""
    best = chosen([one for one in alternatives if not one.with_plan and one.placement in FALLBACKS])
    return PLANNED if best is None else best.placement


# ------------------------------------------------------------------------------------------------ inside


def _by_degree(worker: PlanWorker) -> tuple[int, float, int]:
    """Highest degree first; among equals those whose trajectories are the longest keep them, so that a new
    plan does not swap what two equal workers hold.
    """
    return -worker.degree, -(worker.homed_remaining / worker.homed if worker.homed else 0.0), worker.id


def _fitting(window: Window) -> WorkerProfile:
    """The operator's profile where it has all the live degrees, with the workers' own slots and KV."""
    learned = profile_of(window.workers)
    given = window.profile
    if given is None:
        return learned
    missing = sorted(learned.degrees.keys() - given.degrees.keys())
    if missing:
        raise RoundError(f"profile: {window.profile_name} has no MP degree {missing[0]}, but a worker has")
    degrees: dict[int, Any] = {}
    for degree, seen in learned.degrees.items():
        known = given.degrees[degree]
        if isinstance(known, DegreeProfile) and isinstance(seen, DegreeProfile):
            known = known.model_copy(update={"slots": seen.slots, "kv_tokens": seen.kv_tokens})
        degrees[degree] = known
    return given.model_copy(update={"degrees": degrees})


def _solve(
    active: Sequence[ActiveTrajectory],
    degrees: Sequence[int],
    profile: WorkerProfile,
    cost: CostName,
    error: float,
    shape: Shape,
) -> SolvedPlan:
    most = _longest_that_fits(profile, shape)
    lengths = [min(most, max(1.0, one.remaining)) for one in active]

    def spread(one: ActiveTrajectory, length: float) -> float:
        sigma = min(3.0, one.sigma if one.sigma is not None else error)
        return length * math.sqrt(math.expm1(sigma * sigma))

    return solve(
        lengths,
        sigmas=[spread(one, length) for one, length in zip(active, lengths, strict=True)],
        gpus=sum(degrees),
        degrees=sorted(set(degrees)),
        workers=list(degrees),
        profile_json=profile.model_dump_json(),
        solver="exact",
        cost=cost,
        context_tokens=shape.context,
        input_per_output=shape.input_per_output,
        tool_seconds_per_output=shape.tool_seconds_per_output,
    )


def _longest_that_fits(profile: WorkerProfile, shape: Shape) -> float:
    """Output tokens after which a context fills the largest worker's KV: however long a trajectory is
    expected to be, there it ends.
    """
    known = [degree for degree in profile.degrees.values() if isinstance(degree, DegreeProfile)]
    room = KV_SHARE * max((degree.kv_tokens for degree in known), default=0) - shape.context
    return max(1.0, room / (1.0 + shape.input_per_output)) if known else math.inf


def _on_workers(solved: SolvedPlan, workers: Sequence[PlanWorker]) -> list[tuple[PlanWorker, int, float]]:
    """Each live worker with its number of trajectories and seconds, in the order of the ranks."""
    left = list(workers)
    placed = []
    for planned in solved["workers"]:
        worker = next(one for one in left if one.degree == planned["degree"])
        left.remove(worker)
        placed.append((worker, len(planned["members"]), planned["cost"]))
    return placed + [(worker, 0, 0.0) for worker in left]


def _rehearsed(
    window: Window,
    workers: Sequence[PlanWorker],
    active: Sequence[ActiveTrajectory],
    past: Sequence[Script],
    placed: Sequence[tuple[PlanWorker, int, float]],
    profile: WorkerProfile,
    error: float,
    seed: int,
) -> list[Alternative]:
    if not profile.has_steps:
        return []  # the short form of a profile cannot be simulated
    degrees = sorted({worker.degree for worker in workers})
    stage = Stage(
        truth=truth_of(profile, degrees=degrees, kv_scale=1.0, slots=None),
        workers=[worker.degree for worker in workers],
        policy=window.policy,
        error=error,
        seed=seed,
    )
    number = {worker.id: index for index, worker in enumerate(workers)}
    shares = [(number[worker.id], size) for worker, size, _ in placed]
    ways = [Way("plan", PLANNED, shares), *(Way(name, name) for name in SIMPLEST)]
    return rehearse(ways, active, past, stage)


def _share(
    worker: PlanWorker,
    group: Sequence[ActiveTrajectory],
    first: int,
    seconds: float,
    profile: WorkerProfile,
) -> PlanShare:
    given = share_of(worker.degree, [one.remaining for one in group], first, seconds, profile)
    return given.model_copy(update={"worker": worker.id, "name": worker.name})


def _digest(window: Window, active: Sequence[ActiveTrajectory]) -> str:
    return digest_of(
        [
            [worker.model_dump(mode="json") for worker in sorted(window.workers, key=lambda one: one.id)],
            [one.model_dump(mode="json") for one in active],
            [(script.prompt, script.output, len(script.turns)) for script in window.past],
            window.error,
            dict(window.policy),
            window.profile.model_dump(mode="json") if window.profile else None,
        ]
    )
