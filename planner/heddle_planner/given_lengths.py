"""Plans for given lengths: who would go where, and on which workers, whether or not they are there.

Pure, like `round`; no rehearsal, so that 6,400 lengths on 64 GPUs are answered in milliseconds.
"""

import time
from collections.abc import Callable, Sequence

from heddle_contracts.planning import (
    Alternative,
    CostName,
    Plan,
    PlanCompute,
    PlanMaking,
    PlanReason,
)
from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import SolvedPlan, solve

from heddle_planner.round import PLANNED, RoundError
from heddle_planner.shares import Shape, digest_of, lower_bound, share_of
from heddle_planner.simulate.fleet import single_degree


def plan_given(
    asked: PlanCompute,
    profile: WorkerProfile,
    profile_name: str,
    now: float,
    *,
    live_gpus: int = 0,
    ttl_s: float = 120.0,
) -> Plan:
    """A plan for given lengths: the workers too, where only GPUs are given. Raises RoundError."""
    lengths = asked.lengths or ()
    gpus = asked.gpus or sum(asked.workers or ()) or live_gpus
    if gpus < 1:
        raise RoundError("gpus: not given, and no worker is live whose GPUs could be meant")
    known = sorted(profile.degrees)
    degrees = sorted({degree for degree in asked.degrees or known if degree <= gpus})
    missing = [degree for degree in (*degrees, *(asked.workers or ())) if degree not in profile.degrees]
    if missing:
        raise RoundError(f"degrees: the profile has no MP degree {missing[0]}; it has {known}")
    if not degrees:
        raise RoundError(f"degrees: none of {sorted(asked.degrees or known)} fits {gpus} GPUs")
    cost: CostName = asked.cost or ("simulated" if profile.has_steps else "size_only")
    profile_json = profile.model_dump_json()

    def solved_for(workers: Sequence[int] | None) -> SolvedPlan:
        return solve(
            lengths,
            sigmas=asked.sigmas,
            gpus=gpus,
            degrees=degrees,
            workers=workers,
            profile_json=profile_json,
            solver=asked.solver,
            cost=cost,
        )

    started = time.perf_counter()
    try:
        solved = solved_for(asked.workers)
    except ValueError as fault:
        raise RoundError(str(fault)) from fault
    solve_seconds = time.perf_counter() - started
    shares, first = [], 0
    for worker in solved["workers"]:
        group = [lengths[index] for index in worker["members"]]
        shares.append(share_of(worker["degree"], group, first, worker["cost"], profile))
        first += len(group)
    alternatives = []
    if asked.workers is None and len(degrees) > 1:
        alternatives = _single_degrees(gpus, degrees, solved_for)
    return Plan(
        reason=PlanReason.REQUEST,
        making=PlanMaking.SHARES,
        live=False,
        made_at=now,
        expires_at=now + ttl_s,
        inputs_digest=digest_of([asked.model_dump_json(), profile_json, gpus]),
        trajectories=len(lengths),
        gpus=gpus,
        shape=tuple(worker["degree"] for worker in solved["workers"]),
        profile=profile_name,
        solver=asked.solver,
        cost=cost,
        placement=PLANNED,
        fallback_placement=PLANNED,
        expected_makespan_s=solved["makespan"],
        lower_bound_s=lower_bound(
            lengths, [worker["degree"] for worker in solved["workers"]], profile, Shape()
        ),
        solve_seconds=solve_seconds,
        shares=tuple(shares),
        alternatives=tuple(alternatives),
        members=tuple(tuple(worker["members"]) for worker in solved["workers"]),
    )


def _single_degrees(
    gpus: int, degrees: Sequence[int], solved_for: Callable[[Sequence[int]], SolvedPlan]
) -> list[Alternative]:
    """What workers of one degree each would come to: the alternatives to a mix."""
    found = []
    for degree in degrees:
        try:
            makespan = solved_for(single_degree(gpus, degree))["makespan"]
        except ValueError:
            continue  # the longest does not fit such workers
        found.append(
            Alternative(
                name=f"{gpus // degree} workers of degree {degree}",
                placement=PLANNED,
                with_plan=True,
                expected_makespan_s=makespan,
                worst_makespan_s=makespan,
            )
        )
    return sorted(found, key=lambda one: one.expected_makespan_s)
