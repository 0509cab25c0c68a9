"""The admin API under /admin/v1: trajectories, workers, policy, counts.

`admin_router` takes what it needs as protocols and holds no state; app.py wires them. Access is the app's
business: it mounts the router behind the admin key.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Path, Query, Response
from heddle_contracts.admin import (
    CoreAudit,
    FinishAnswer,
    GatewayStats,
    HistoryStats,
    Phase,
    StepCounts,
    TrajectoryDetail,
    TrajectoryFilter,
    TrajectoryKey,
    TrajectoryPage,
    TrajectorySort,
    WorkerAdd,
    WorkerList,
    WorkerView,
)
from heddle_contracts.policy import Policy, PolicyChange
from pydantic import AfterValidator

from heddle_gateway.identity.ids import asked_id
from heddle_gateway.routes.admin_listing import (
    LiveTrajectories,
    TrajectoryHistory,
    list_trajectories,
    overlaid,
)
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, problems


class PolicyControl(Protocol):
    """The decision core's policy."""

    def policy(self) -> Mapping[str, Any]: ...
    def change_policy(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Puts the given fields in force from the next decision on; returns the whole policy.

        Raises ValueError whose message is the field at fault, a colon, and what it may be.
        """


class WorkerControl(Protocol):
    """The fleet; see `routes.admin_fleet` for the one that is wired."""

    def workers(self) -> list[WorkerView]: ...
    def worker(self, worker_id: int) -> WorkerView | None: ...
    async def add(self, wanted: WorkerAdd) -> tuple[WorkerView, bool]:
        """The worker, and whether it is new. Raises AdminProblem for an address that is refused."""

    async def drain(self, worker_id: int) -> WorkerView | None:
        """No new steps, and removed when the last one has ended; None if there is no such worker."""


@dataclass(frozen=True, slots=True)
class AdminDeps:
    """What the admin API looks at and acts on."""

    live: LiveTrajectories
    history: TrajectoryHistory
    policy: PolicyControl
    workers: WorkerControl
    step_counts: Callable[[], StepCounts]
    core_stats: Callable[[], dict[str, int]]
    core_audit: Callable[[], list[str]]
    history_stats: Callable[[], HistoryStats]


TrajectoryId = Annotated[
    str,
    AfterValidator(asked_id),
    Path(description="The id as the client sent it, percent-encoded: it may hold '/' and ':'."),
]
Tenant = Annotated[
    str | None, Query(description="Needed only where callers with different keys use the same id.")
]
_HISTORY_AWAY = "The history database cannot be read."


def admin_router(deps: AdminDeps) -> APIRouter:
    """The routes under /admin/v1."""
    router = APIRouter(
        prefix="/admin/v1", route_class=ProblemRoute, responses=problems(status_422="A bad value.")
    )
    _add_trajectory_routes(router, deps)
    _add_worker_routes(router, deps.workers)
    _add_policy_routes(router, deps.policy)

    @router.get("/stats", tags=["stats"], summary="Counts of steps, core and history")
    async def get_stats() -> GatewayStats:
        return GatewayStats(steps=deps.step_counts(), core=deps.core_stats(), history=deps.history_stats())

    @router.get("/audit", tags=["stats"], summary="Broken invariants of the decision core")
    async def get_audit() -> CoreAudit:
        """Walks all live state while steps wait: for tests and on suspicion, not for monitoring."""
        return CoreAudit(broken=deps.core_audit())

    return router


# ------------------------------------------------------------------------------------------ trajectories


def _wanted(
    phase: Annotated[Phase | None, Query()] = None,
    model: Annotated[str | None, Query()] = None,
    worker: Annotated[str | None, Query(description="Name of the home worker.")] = None,
    group: Annotated[str | None, Query(description="Group id.")] = None,
    source: Annotated[str | None, Query(description="Identity rule that fired.")] = None,
    tenant: Annotated[str | None, Query(description="Hash of the caller's key.")] = None,
    since: Annotated[
        float | None, Query(description="Seen at or after this Unix time.", allow_inf_nan=False)
    ] = None,
    prefix: Annotated[str | None, Query(description="The id begins with this.")] = None,
) -> TrajectoryFilter:
    return TrajectoryFilter(
        phase=phase,
        model=model,
        worker=worker,
        group=group,
        source=source,
        tenant=tenant,
        since=since,
        prefix=prefix,
    )


async def _one_key(deps: AdminDeps, trajectory_id: str, tenant: str | None) -> TrajectoryKey:
    """The trajectory meant by an id; AdminProblem when there is none, or more than one tenant's."""
    keys = set(deps.live.named(trajectory_id))
    keys |= {found.key for found in await deps.history.trajectory(trajectory_id)}
    if tenant is not None:
        keys &= {TrajectoryKey(tenant, trajectory_id)}
    if not keys:
        raise AdminProblem(
            HTTPStatus.NOT_FOUND,
            f"no trajectory {trajectory_id!r}",
            field="trajectory_id",
            fix="List ids with GET /admin/v1/trajectories?prefix=...",
        )
    if len(keys) > 1:
        raise AdminProblem(
            HTTPStatus.CONFLICT,
            f"{len(keys)} tenants use the trajectory id {trajectory_id!r}",
            field="tenant",
            allowed=sorted(key.tenant for key in keys),
            fix="Say which one with ?tenant=",
        )
    return keys.pop()


def _add_trajectory_routes(router: APIRouter, deps: AdminDeps) -> None:
    tags: list[Any] = ["trajectories"]

    @router.get(
        "/trajectories",
        tags=tags,
        summary="List trajectories, live and past",
        responses=problems(status_503=_HISTORY_AWAY),
    )
    async def get_trajectories(
        wanted: Annotated[TrajectoryFilter, Depends(_wanted)],
        sort: TrajectorySort = TrajectorySort.LAST_SEEN_DESC,
        cursor: Annotated[str | None, Query(description="next_cursor of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> TrajectoryPage:
        return await list_trajectories(deps.live, deps.history, wanted, sort, cursor, limit)

    # Before the route of one trajectory, whose path parameter would swallow it for POST if there were one.
    @router.post(
        "/trajectories/{trajectory_id:path}/finish",
        tags=tags,
        summary="Say that no further step comes",
        responses=problems(
            status_404="No such trajectory.",
            status_409="Several tenants use this id, or it is over already.",
            status_503=_HISTORY_AWAY,
        ),
    )
    async def finish_trajectory(trajectory_id: TrajectoryId, tenant: Tenant = None) -> FinishAnswer:
        held = [key for key in deps.live.named(trajectory_id) if tenant in (None, key.tenant)]
        # A live one is finished without asking the database, which may be away.
        key = held[0] if len(held) == 1 else await _one_key(deps, trajectory_id, tenant)
        view = deps.live.view(key)
        if view is None or not deps.live.finish(key):
            raise AdminProblem(
                HTTPStatus.CONFLICT,
                f"trajectory {trajectory_id!r} is not live",
                field="trajectory_id",
                fix="Nothing is left to do: the gateway holds nothing of it.",
            )
        return FinishAnswer(trajectory_id=trajectory_id, tenant=key.tenant, live_steps=view.live_steps)

    @router.get(
        "/trajectories/{trajectory_id:path}",
        tags=tags,
        summary="One trajectory with its ended steps",
        responses=problems(
            status_404="No such trajectory.",
            status_409="Several tenants use this id.",
            status_503=_HISTORY_AWAY,
        ),
    )
    async def get_trajectory(
        trajectory_id: TrajectoryId,
        tenant: Tenant = None,
        steps_after: Annotated[
            int | None, Query(ge=0, lt=2**63, description="next_after of the steps before.")
        ] = None,
        steps_limit: Annotated[int, Query(ge=1, le=2000)] = 200,
    ) -> TrajectoryDetail:
        key = await _one_key(deps, trajectory_id, tenant)
        past = (await deps.history.totals([key])).get(key)
        steps = await deps.history.steps(key, steps_after, steps_limit)
        view = deps.live.view(key)
        if view is not None:
            return TrajectoryDetail(trajectory=overlaid(view, past), steps=steps)
        if past is None:
            raise AdminProblem(
                HTTPStatus.NOT_FOUND, f"trajectory {trajectory_id!r} has just ended without a step"
            )
        return TrajectoryDetail(trajectory=past, steps=steps)


# ----------------------------------------------------------------------------------------------- workers


def _add_worker_routes(router: APIRouter, workers: WorkerControl) -> None:
    tags: list[Any] = ["workers"]
    no_worker = problems(status_404="No such worker.")

    def found(view: WorkerView | None, worker_id: int) -> WorkerView:
        if view is None:
            raise AdminProblem(
                HTTPStatus.NOT_FOUND,
                f"no worker {worker_id}",
                field="worker_id",
                fix="List ids with GET /admin/v1/workers.",
            )
        return view

    @router.get("/workers", tags=tags, summary="List workers")
    async def get_workers() -> WorkerList:
        return WorkerList(items=sorted(workers.workers(), key=lambda view: view.id))

    @router.post(
        "/workers",
        tags=tags,
        summary="Add a worker",
        status_code=HTTPStatus.CREATED,
        responses={
            200: {
                "model": WorkerView,
                "description": "It was there already; a key that was given is its key now.",
            }
        },
    )
    async def add_worker(wanted: WorkerAdd, response: Response) -> WorkerView:
        """Answers at once; a server that is not reachable yet is asked again until it is."""
        view, is_new = await workers.add(wanted)
        response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
        return view

    @router.get("/workers/{worker_id}", tags=tags, summary="One worker", responses=no_worker)
    async def get_worker(worker_id: int) -> WorkerView:
        return found(workers.worker(worker_id), worker_id)

    @router.delete(
        "/workers/{worker_id}",
        tags=tags,
        summary="Drain a worker, then remove it",
        status_code=HTTPStatus.ACCEPTED,
        responses=no_worker,
    )
    async def drain_worker(worker_id: int) -> WorkerView:
        """It gets no new steps; its running ones end as they would have."""
        return found(await workers.drain(worker_id), worker_id)


# ------------------------------------------------------------------------------------------------ policy


def _policy_problem(fault: ValueError) -> AdminProblem:
    """The core's refusal, "field: why"; allowed values stand in backticks after "expected"."""
    text = str(fault)
    field, _, why = text.partition(": ")
    said, expected, after = text.partition(", expected")
    allowed = re.findall(r"`([^`]*)`", after) if expected else []
    if not allowed:
        return AdminProblem(HTTPStatus.UNPROCESSABLE_ENTITY, text, field=field)
    fix = "Send one of the allowed " + ("fields." if "unknown field" in why else "values.")
    return AdminProblem(HTTPStatus.UNPROCESSABLE_ENTITY, said, field=field, allowed=allowed, fix=fix)


def _add_policy_routes(router: APIRouter, control: PolicyControl) -> None:
    @router.get("/policy", tags=["policy"], summary="The policy in force")
    async def get_policy() -> Policy:
        return Policy.model_validate(control.policy())

    @router.put("/policy", tags=["policy"], summary="Switch order, placement or admission")
    async def put_policy(wanted: PolicyChange) -> Policy:
        """Takes effect at the next decision; what runs goes on."""
        try:
            changed = control.change_policy(wanted.model_dump(exclude_unset=True))
        except ValueError as fault:
            raise _policy_problem(fault) from fault
        return Policy.model_validate(changed)
