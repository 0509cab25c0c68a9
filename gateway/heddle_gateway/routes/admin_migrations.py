"""``/admin/v1/migrations``: moves of KV that are under way or were, and asking for one.

Those under way and the last that ended are known to this process; all that ended are in history.
"""

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, Literal, Protocol

from fastapi import APIRouter, Depends, Query
from heddle_contracts.migrations import Move, MoveAsk, MoveFilter, MoveList, MoveState

from heddle_gateway.fleet.worker import WorkerView
from heddle_gateway.identity.ids import asked_id
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.moves_wanted import MoveRefused
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, not_a_cursor, problems
from heddle_gateway.store.engine import StoreError

MOST_SHOWN: Final = 1000
Position = tuple[float, str, int]
"""Of an ended move in the list: (ended_at, process, id)."""


class MoveControl(Protocol):
    """The core's side (live.driver.Driver)."""

    @property
    def directory(self) -> Directory: ...
    def ask_migration(
        self, trajectory: LiveTrajectory, to_worker: int, within_s: float | None = None
    ) -> None:
        """Raises MoveRefused."""


class MovesPast(Protocol):
    """Ended moves in history (store.move_history). Raises StoreError when it cannot be read."""

    async def page(self, wanted: MoveFilter, after: Position | None, limit: int) -> list[Move]: ...


@dataclass(frozen=True, slots=True)
class MigrationDeps:
    """Wired by app.py. ``moves``: not ended ones, oldest first, then the last ended ones, newest first."""

    driver: MoveControl
    moves: Callable[[], list[Move]]
    past: MovesPast
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
        wanted: Annotated[MoveFilter, Depends(_wanted)],
        limit: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = 100,
        cursor: Annotated[str | None, Query(description="next_cursor of the page before.")] = None,
    ) -> MoveList:
        """Those under way are on the first page, oldest first; those that have ended follow, newest first."""
        return await _listed(deps, wanted, cursor, limit)

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
            deps.driver.ask_migration(live, _worker(deps.workers(), wanted.to), wanted.deadline_s)
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


def _wanted(
    trajectory_id: Annotated[str | None, Query(description="Only this trajectory's.")] = None,
    tenant: str | None = None,
    worker: Annotated[str | None, Query(description="Name of the source or the target.")] = None,
    state: MoveState | None = None,
    asked_by: Literal["policy", "operator"] | None = None,
    since: Annotated[
        float | None, Query(description="Ended since then, seconds of the Unix epoch.", allow_inf_nan=False)
    ] = None,
) -> MoveFilter:
    return MoveFilter(
        trajectory_id=None if trajectory_id is None else asked_id(trajectory_id),
        tenant=tenant,
        worker=worker,
        state=state,
        asked_by=asked_by,
        since=since,
    )


async def _listed(deps: MigrationDeps, wanted: MoveFilter, cursor: str | None, limit: int) -> MoveList:
    """This process's moves laid over those of history, which may not have the newest yet."""
    ended_at, process, number = _read_cursor(cursor) if cursor is not None else (None, "", 0)
    after = (ended_at, process, number) if ended_at is not None else None
    away = None
    try:
        past = await deps.past.page(wanted, after, limit + 1)
    except StoreError as error:
        past, away = [], str(error)
    going, ended = [], {_place(move): move for move in past}
    for move in deps.moves():
        if not wanted.takes(move):
            continue
        if move.ended_at is not None:
            ended[_place(move)] = move
        elif after is None and move.id > number:
            going.append(move)
    places = sorted((place for place in ended if after is None or place < after), reverse=True)
    found = [*sorted(going, key=lambda move: move.id), *(ended[place] for place in places)]
    shown = found[:limit]
    return MoveList(
        items=shown, next_cursor=_write_cursor(shown[-1]) if len(found) > limit else None, history=away
    )


def _place(move: Move) -> Position:
    assert move.ended_at is not None
    return move.ended_at, move.process, move.id


def _write_cursor(last: Move) -> str:
    position = [last.ended_at, last.process, last.id]
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float | None, str, int]:
    """When the last move of a page ended, None where it had not; its process and id. Raises AdminProblem for
    a text that is no cursor of this list.
    """
    try:
        ended_at, process, number = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        ended_at = float(ended_at) if ended_at is not None else None
        if not (math.isfinite(ended_at or 0.0) and isinstance(process, str) and 0 <= number < 2**63):
            raise ValueError(cursor)
        return ended_at, process, int(number)
    except (ValueError, TypeError) as error:
        raise not_a_cursor() from error


def _trajectory(directory: Directory, wanted: MoveAsk) -> LiveTrajectory:
    found = directory.named(asked_id(wanted.trajectory_id))
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
