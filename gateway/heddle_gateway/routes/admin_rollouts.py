"""The admin API's rollouts: announce a batch, see how far it is, say that it is over."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from heddle_contracts.planning import PlanCompute, PlanReason
from heddle_contracts.rollouts import (
    Rollout,
    RolloutCreate,
    RolloutCreated,
    RolloutList,
    RolloutMember,
    RolloutTrajectories,
)

from heddle_gateway.live.driver import Driver
from heddle_gateway.plans.fitting import DoesNotFit
from heddle_gateway.plans.keeper import NoPlanner, PlanKeeper
from heddle_gateway.plans.rollout_progress import Known
from heddle_gateway.plans.rollouts import GIVEN_SIGMA, RolloutBook, RolloutRefused, RolloutsFull
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, problems
from heddle_gateway.telemetry.planner_client import PlannerRefused

log = logging.getLogger(__name__)

CHUNK: Final = 256
"""Announcements between which steps get their turn."""
RETRY_AFTER_S: Final = 2
"""By then it is known who leads."""

Estimate = tuple[float, float]
"""Mean tokens, and the spread of their logarithm."""


@dataclass(frozen=True, slots=True)
class RolloutDeps:
    """``forecast``: the planner's word on members of which no length was given, or the core's prior;
    ``saved``: returns when a rollout outlives this process, or cannot for now.
    """

    book: RolloutBook
    driver: Driver
    keeper: PlanKeeper
    worker_name: Callable[[int], str | None]
    forecast: Callable[[Sequence[RolloutMember], Sequence[int], str | None], Awaitable[list[Estimate]]]
    max_trajectories: int
    saved: Callable[[], Awaitable[bool]]


RolloutId = Annotated[str, Path(description="As POST /admin/v1/rollouts answered it.")]


def rollouts_router(deps: RolloutDeps) -> APIRouter:
    """The routes under /admin/v1/rollouts."""
    router = APIRouter(
        prefix="/admin/v1/rollouts",
        route_class=ProblemRoute,
        tags=["rollouts"],
        responses=problems(status_422="A bad value."),
    )
    missing = problems(status_404="No such rollout.")

    @router.post(
        "",
        summary="Announce a batch of trajectories before they start",
        status_code=HTTPStatus.CREATED,
        responses=problems(status_409="As many rollouts are kept as can be, and none has finished."),
    )
    async def create_rollout(asked: RolloutCreate) -> RolloutCreated:
        """Each agent names its trajectory, in X-Heddle-Trajectory-Id or by /t/{id} in its base_url. All of
        them are ranked from now on, so that the first placement goes by the ranks of the whole batch.
        """
        room = deps.max_trajectories - deps.driver.directory.total
        try:
            rollout, members, tokens = deps.book.draft(asked, room=max(0, room), known=_known(deps))
        except RolloutRefused as error:
            raise AdminProblem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=error.field) from error
        except RolloutsFull as error:
            raise AdminProblem(
                HTTPStatus.CONFLICT,
                str(error),
                fix="Say of those that are over: POST /admin/v1/rollouts/{id}/finish.",
            ) from error
        estimates = await _estimates(deps, asked, members, tokens)
        kept = await _announce(deps, rollout, asked, members, estimates)
        deps.book.keep(rollout, asked, kept)
        version = await _plan(deps.keeper) if asked.plan else None
        if version is not None and rollout in deps.book:
            deps.book.planned(rollout, version)
        await deps.saved()
        if rollout not in deps.book:
            raise _lost()
        return deps.book.created(rollout, _known(deps))

    @router.get("", summary="Rollouts, newest first")
    async def list_rollouts() -> RolloutList:
        return RolloutList(items=tuple(deps.book.newest_first(_known(deps))))

    @router.get("/{rollout_id}", summary="How far a rollout is, and who will end last", responses=missing)
    async def get_rollout(rollout_id: RolloutId) -> Rollout:
        return _found(deps, rollout_id)

    @router.get(
        "/{rollout_id}/trajectories",
        summary="Every trajectory of a rollout, and what is expected of it",
        response_model=RolloutTrajectories,
        responses=missing,
    )
    async def get_trajectories(rollout_id: RolloutId) -> Response:
        found = deps.book.trajectories(rollout_id, _known(deps))
        if found is None:
            raise _missing(rollout_id)
        # As it is: FastAPI would validate thousands of them a second time.
        return Response(found.model_dump_json(), media_type="application/json")

    @router.post(
        "/{rollout_id}/finish",
        summary="Say that no further step of a rollout comes",
        responses=missing,
    )
    async def finish_rollout(rollout_id: RolloutId) -> Rollout:
        """Trajectories that never came are forgotten, those with running steps after these."""
        unfinished = deps.book.unfinished(rollout_id)
        for number, live in enumerate(unfinished or ()):
            known = deps.driver.directory.by_handle(live.handle)
            if known is live and known is not None:
                deps.driver.finish(known)
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
        return _found(deps, rollout_id)

    return router


async def _estimates(
    deps: RolloutDeps, asked: RolloutCreate, members: Sequence[RolloutMember], tokens: Sequence[int]
) -> list[Estimate]:
    """Of each member: what the caller said, else the planner, else the core's prior."""
    blank = [place for place, member in enumerate(members) if member.predicted is None]
    said = await deps.forecast([members[i] for i in blank], [tokens[i] for i in blank], asked.model)
    found = [(member.predicted or 0.0, GIVEN_SIGMA) for member in members]
    for place, estimate in zip(blank, said, strict=True):
        found[place] = estimate
    return found


async def _announce(
    deps: RolloutDeps,
    rollout: str,
    asked: RolloutCreate,
    members: Sequence[RolloutMember],
    estimates: Sequence[Estimate],
) -> list[tuple[RolloutMember, float, Any]]:
    kept = []
    for number, (member, (mean, sigma)) in enumerate(zip(members, estimates, strict=True)):
        live = deps.driver.directory.announce(
            member.trajectory_id,
            group_id=member.group_id,
            sample=member.sample,
            model=asked.model,
            rollout=rollout,
        )
        deps.driver.expect(live, mean=mean, sigma=sigma)
        kept.append((member.model_copy(update={"predicted": mean}), sigma, live))
        if number % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)
    return kept


async def _plan(keeper: PlanKeeper) -> int | None:
    """A plan for all that is live, the batch included, in force; None where none could be made."""
    try:
        plan = await keeper.compute(PlanCompute(), PlanReason.ROLLOUT)
        if plan.version is not None and keeper.may_place():
            keeper.activate(plan.version, by="planner")
    except (NoPlanner, PlannerRefused, DoesNotFit) as error:
        log.warning("no plan for the rollout: %s", error)
        return None
    return plan.version


def _known(deps: RolloutDeps) -> Known:
    driver = deps.driver
    quiet_s = driver.policy()["dormant_after_ms"] / 1000.0
    return Known({row[0]: row for row in driver.active()}, deps.worker_name, driver.trajectory_view, quiet_s)


def _found(deps: RolloutDeps, rollout_id: str) -> Rollout:
    rollout = deps.book.view(rollout_id, _known(deps))
    if rollout is None:
        raise _missing(rollout_id)
    return rollout


def _lost() -> AdminProblem:
    return AdminProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the rollout is not kept here any more: another gateway leads now, or many newer ones were announced",
        fix="Announce the batch again; trajectories of this one that never come are forgotten.",
        retry_after_s=RETRY_AFTER_S,
    )


def _missing(rollout_id: str) -> AdminProblem:
    return AdminProblem(
        HTTPStatus.NOT_FOUND,
        f"no rollout {rollout_id!r} is kept",
        field="rollout_id",
        fix="List them with GET /admin/v1/rollouts.",
    )
