"""``/admin/v1/migrations``: moves of KV that are under way or were, and asking for one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, Protocol

from fastapi import APIRouter, Query
from heddle_contracts.migrations import Move, MoveAsk, MoveList

from heddle_gateway.fleet.worker import WorkerView
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.driver import MoveRefused
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, problems

MOST_SHOWN: Final = 1000


class MoveControl(Protocol):
    """The core's side (live.driver.Driver)."""

    @property
    def directory(self) -> Directory: ...
    def ask_migration(self, trajectory: LiveTrajectory, to_worker: int) -> None:
        """Raises MoveRefused."""


@dataclass(frozen=True, slots=True)
class MigrationDeps:
    """Wired by app.py. ``moves``: not ended ones, oldest first, then ended ones, newest first."""

    driver: MoveControl
    moves: Callable[[], list[Move]]
    workers: Callable[[], Sequence[WorkerView]]


def migrations_router(deps: MigrationDeps) -> APIRouter:
    """The routes."""
    router = APIRouter(
        prefix="/admin/v1/migrations",
        route_class=ProblemRoute,
        tags=["migrations"],
        responses=problems(status_422="A bad value."),
    )

    @router.get("", summary="Moves of KV: those under way, then those that have ended")
    async def list_migrations(
        limit: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = 100,
        trajectory_id: Annotated[str | None, Query(description="Only this trajectory's.")] = None,
    ) -> MoveList:
        """Ended ones are remembered by this process alone, the last thousand."""
        moves = deps.moves()
        if trajectory_id is not None:
            moves = [move for move in moves if move.trajectory_id == trajectory_id]
        return MoveList(items=moves[:limit])

    @router.post(
        "",
        status_code=202,
        summary="Move a trajectory's KV to another worker",
        responses=problems(
            status_404="No such live trajectory or worker.", status_409="It cannot be moved there now."
        ),
    )
    async def ask_migration(wanted: MoveAsk) -> MoveList:
        """It begins at once in the trajectory's tool gap, else in its next one within a minute. Nobody weighs
        whether it is worth it. Answers the trajectory's moves.
        """
        live = _trajectory(deps.driver.directory, wanted)
        try:
            deps.driver.ask_migration(live, _worker(deps.workers(), wanted.to))
        except MoveRefused as error:
            field = str(error).partition(":")[0]
            raise AdminProblem(
                HTTPStatus.CONFLICT,
                str(error),
                field="trajectory_id" if field == "trajectory" else field,
                fix="GET /admin/v1/workers shows where KV can go.",
            ) from error
        return MoveList(
            items=[
                move
                for move in deps.moves()
                if (move.tenant, move.trajectory_id) == (live.tenant, live.trajectory_id)
            ]
        )

    return router


def _trajectory(directory: Directory, wanted: MoveAsk) -> LiveTrajectory:
    found = directory.named(wanted.trajectory_id)
    if wanted.tenant is not None:
        found = [live for live in found if live.tenant == wanted.tenant]
    if not found:
        raise AdminProblem(
            HTTPStatus.NOT_FOUND,
            f"no live trajectory {wanted.trajectory_id[:200]!r}",
            field="trajectory_id",
            fix="GET /admin/v1/trajectories lists them.",
        )
    if len(found) > 1:
        raise AdminProblem(
            HTTPStatus.CONFLICT,
            f"{len(found)} callers use this id",
            field="tenant",
            allowed=[live.tenant for live in found],
            fix="Say whose it is.",
        )
    return found[0]


def _worker(workers: Sequence[WorkerView], named: str) -> int:
    for worker in workers:
        if named in (worker.name, str(worker.worker_id), worker.url):
            return worker.worker_id
    raise AdminProblem(
        HTTPStatus.NOT_FOUND,
        f"no worker {named[:200]!r}",
        field="to",
        allowed=[worker.name for worker in workers],
        fix="Send the name or the id of a worker.",
    )
