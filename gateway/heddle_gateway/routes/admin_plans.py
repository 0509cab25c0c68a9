"""The admin API's plans: list, current, compute, activate, explain."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Body, Path, Query, Response
from heddle_contracts.planning import Activated, Plan, PlanCompute, PlanExplained, PlanList

from heddle_gateway.plans.explain import Whereabouts, explain
from heddle_gateway.plans.fitting import DoesNotFit
from heddle_gateway.plans.keeper import NoPlanner, PlanKeeper
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, problems
from heddle_gateway.telemetry.planner_client import PlannerRefused

RETRY_AFTER_S = 5


class LivePlaces(Protocol):
    """Where live trajectories are now; see `routes.admin_live`."""

    def whereabouts(self) -> Mapping[str, Whereabouts]: ...


@dataclass(frozen=True, slots=True)
class PlanDeps:
    """What these routes look at and act on."""

    keeper: PlanKeeper
    places: LivePlaces


Version = Annotated[int, Path(description="As in GET /admin/v1/plans.")]
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

    @router.get("", summary="Plans that are kept, newest first")
    async def list_plans() -> PlanList:
        now = time.time()
        current = keeper.book.current(now)
        kept = keeper.book.newest_first(now)
        return PlanList(
            items=tuple(plan.model_copy(update={"members": ()}) for plan in kept),
            current=current.version if current is not None else None,
            planner=keeper.planner_state,
        )

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
        return _found(keeper, version)

    @router.post(
        "/{version}/activate",
        summary="Put a plan in force, also to roll back to an older one",
        responses=problems(status_404=_NO_PLAN, status_409="The live workers cannot carry it."),
    )
    async def activate_plan(version: Version) -> Activated:
        """Takes effect at the next decision; what runs goes on. One that has expired holds as long again."""
        _found(keeper, version)
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
        return explain(
            _found(keeper, version),
            deps.places.whereabouts(),
            keeper.book.lengths(version),
            most=trajectories,
        )

    return router


def _found(keeper: PlanKeeper, version: int) -> Plan:
    plan = keeper.book.get(version, time.time())
    if plan is None:
        raise AdminProblem(
            HTTPStatus.NOT_FOUND,
            f"no plan of version {version} is kept",
            field="version",
            fix="List versions with GET /admin/v1/plans.",
        )
    return plan


def _refused(error: PlannerRefused) -> AdminProblem:
    """The planner's own words, with its status where that is the caller's fault."""
    known = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
    status = next((one for one in known if one == error.status), HTTPStatus.BAD_GATEWAY)
    fix = "The planner refused the gateway: look at HEDDLE_PLANNER_KEY." if error.status == 401 else None
    return AdminProblem(status, error.detail, field=error.field, fix=fix)
