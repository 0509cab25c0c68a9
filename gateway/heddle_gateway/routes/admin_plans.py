"""The admin API's plans: list, current, compute, activate, explain.

The newest ones are in the keeper's book, whatever the database does; all are in history.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import (
    Activated,
    Plan,
    PlanCompute,
    PlanExplained,
    PlanFilter,
    PlanList,
    PlanMaking,
    PlanReason,
)

from heddle_gateway.plans.explain import Whereabouts, explain
from heddle_gateway.plans.fitting import DoesNotFit
from heddle_gateway.plans.keeper import NoPlanner, PlanKeeper
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, not_a_cursor, problems
from heddle_gateway.store.engine import StoreError
from heddle_gateway.telemetry.planner_client import PlannerRefused

RETRY_AFTER_S = 5
LONGEST_CURSOR = 18
"""Digits: fits the column of versions."""


class LivePlaces(Protocol):
    """Where live trajectories are now; see `routes.admin_live`."""

    def whereabouts(self) -> Mapping[str, Whereabouts]: ...


class PlansPast(Protocol):
    """Plans in history (store.plan_history). Raises StoreError when it cannot be read."""

    async def page(self, wanted: PlanFilter, below: int | None, limit: int) -> list[Plan]: ...
    async def get(self, version: int) -> PlanRecord | None: ...


@dataclass(frozen=True, slots=True)
class PlanDeps:
    """What these routes look at and act on."""

    keeper: PlanKeeper
    places: LivePlaces
    past: PlansPast


Version = Annotated[int, Path(ge=1, lt=2**63, description="As in GET /admin/v1/plans.")]
_NO_PLANNER = "No planner is configured, or it cannot be asked now."
_NO_PLAN = "No such plan."


def plans_router(deps: PlanDeps) -> APIRouter:
    """The routes under /admin/v1/plans."""
    router = APIRouter(
        prefix="/admin/v1/plans",
        route_class=ProblemRoute,
        tags=["plans"],
        responses=problems(status_422="A bad value."),
    )
    keeper = deps.keeper

    @router.get("", summary="Plans, newest first")
    async def list_plans(
        wanted: Annotated[PlanFilter, Depends(_wanted)],
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        cursor: Annotated[str | None, Query(description="next_cursor of the page before.")] = None,
    ) -> PlanList:
        """All that were made and not pruned since, without their members."""
        return await _listed(deps, wanted, below_of(cursor), limit)

    @router.get("/current", summary="The plan in force", responses=problems(status_404="None is in force."))
    async def current_plan() -> Plan:
        plan = keeper.book.current(time.time())
        if plan is None:
            raise AdminProblem(
                HTTPStatus.NOT_FOUND,
                f"no plan is in force; the planner is {keeper.planner_state}, and steps are placed by the"
                " policy",
                fix="Make one with POST /admin/v1/plans and activate it, or look at GET /admin/v1/policy.",
            )
        return plan

    @router.post(
        "",
        summary="Make a plan now, for what is live or for given lengths",
        status_code=HTTPStatus.CREATED,
        response_model=Plan,
        responses=problems(status_409="Nothing is live that could be planned.", status_503=_NO_PLANNER)
        | {200: {"model": Plan, "description": "A dry run: the plan is not kept."}},
    )
    async def compute_plan(asked: Annotated[PlanCompute | None, Body()] = None) -> Any:
        """The plan is kept, not put in force: activate it by its version."""
        asked = asked or PlanCompute()
        try:
            plan = await keeper.compute(asked)
        except NoPlanner as error:
            raise AdminProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                str(error),
                fix="Steps are served meanwhile, placed by the policy; see planner in GET /ready.",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        except PlannerRefused as error:
            raise _refused(error) from error
        status = HTTPStatus.OK if asked.dry_run else HTTPStatus.CREATED
        # As it is: FastAPI would validate thousands of members a second time.
        return Response(plan.model_dump_json(), status_code=status, media_type="application/json")

    @router.get("/{version}", summary="One plan", responses=problems(status_404=_NO_PLAN))
    async def get_plan(version: Version) -> Plan:
        return (await _found(deps, version)).plan

    @router.post(
        "/{version}/activate",
        summary="Put a plan in force, also to roll back to an older one",
        responses=problems(status_404=_NO_PLAN, status_409="The live workers cannot carry it."),
    )
    async def activate_plan(version: Version) -> Activated:
        """Takes effect at the next decision; what runs goes on. One that has expired holds as long again."""
        if keeper.book.get(version, time.time()) is None:
            found = await _found(deps, version)
            keeper.book.admit(found.plan, found.lengths)
        try:
            return keeper.activate(version)
        except DoesNotFit as error:
            raise AdminProblem(
                HTTPStatus.CONFLICT,
                f"plan {version} does not fit: {error}",
                field="version",
                fix="Make a plan for the live workers: POST /admin/v1/plans without lengths.",
            ) from error

    @router.get(
        "/{version}/explain",
        summary="A plan in plain words: why each worker takes what it takes",
        responses=problems(status_404=_NO_PLAN),
    )
    async def explain_plan(
        version: Version,
        trajectories: Annotated[
            int, Query(ge=0, le=10_000, description="How many are explained, the longest first.")
        ] = 20,
    ) -> PlanExplained:
        found = await _found(deps, version)
        return explain(found.plan, deps.places.whereabouts(), found.lengths, most=trajectories)

    return router


def _wanted(
    reason: PlanReason | None = None,
    making: PlanMaking | None = None,
    live: Annotated[bool | None, Query(description="Made for what was live, or for given lengths.")] = None,
    activated: Annotated[bool | None, Query(description="Whether it was ever in force.")] = None,
    since: Annotated[
        float | None, Query(description="Made since then, seconds of the Unix epoch.", allow_inf_nan=False)
    ] = None,
) -> PlanFilter:
    return PlanFilter(reason=reason, making=making, live=live, activated=activated, since=since)


def below_of(cursor: str | None) -> int | None:
    """The version that a page begins below. Raises AdminProblem for what is no cursor of this list."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > LONGEST_CURSOR:
        raise not_a_cursor()
    return int(cursor)


async def _listed(deps: PlanDeps, wanted: PlanFilter, below: int | None, limit: int) -> PlanList:
    """The book's plans laid over those of history, which may not have the newest yet."""
    book, now = deps.keeper.book, time.time()
    away = None
    try:
        past = await deps.past.page(wanted, below, limit + 1)
    except StoreError as error:
        past, away = [], str(error)
    found = {plan.version or 0: book.seen(plan, now) for plan in past}
    for plan in book.newest_first(now):
        if below is None or (plan.version or 0) < below:
            # Also takes out what matched before it was put in force.
            found.pop(plan.version or 0, None)
            if wanted.takes(plan):
                found[plan.version or 0] = plan
    versions = sorted(found, reverse=True)
    shown = versions[:limit]
    more = max(len(versions), len(past)) > limit
    current = book.current(now)
    return PlanList(
        items=tuple(found[version].model_copy(update={"members": ()}) for version in shown),
        current=current.version if current is not None else None,
        planner=deps.keeper.planner_state,
        next_cursor=str(shown[-1] if shown else past[-1].version) if more else None,
        history=away,
    )


async def _found(deps: PlanDeps, version: int) -> PlanRecord:
    """Raises AdminProblem for a version that was never given or is pruned; StoreError."""
    book, now = deps.keeper.book, time.time()
    plan = book.get(version, now)
    if plan is not None:
        return PlanRecord(plan, book.lengths(version))
    found = await deps.past.get(version)
    if found is None:
        raise AdminProblem(
            HTTPStatus.NOT_FOUND,
            f"no plan of version {version} is kept",
            field="version",
            fix="List versions with GET /admin/v1/plans.",
        )
    return PlanRecord(book.seen(found.plan, now), found.lengths)


def _refused(error: PlannerRefused) -> AdminProblem:
    """The planner's own words, with its status where that is the caller's fault."""
    known = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
    status = next((one for one in known if one == error.status), HTTPStatus.BAD_GATEWAY)
    fix = "The planner refused the gateway: look at HEDDLE_PLANNER_KEY." if error.status == 401 else None
    return AdminProblem(status, error.detail, field=error.field, fix=fix)
