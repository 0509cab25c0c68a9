"""Carries out the core's moves of KV: asks the source's shim, waits for its word, tells the core.

Nothing is decided here. Invariants: each move that was begun is reported to the core exactly once; every task
is owned and ends with ``close``; a shim that is away fails the move and nothing else.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

import httpx
from heddle_contracts.kv import MigrationFault, MigrationRequest, MigrationState, MigrationStatus
from heddle_contracts.migrations import Move, MoveState
from heddle_core import CancelMigration, Migrate
from heddle_core.names import MigrationFailure
from pydantic import ValidationError

from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.shim_links import ShimLinks

log = logging.getLogger(__name__)

REMEMBERED: Final = 1000
"""Ended moves that are kept to be shown."""
LONGEST_WAIT_S: Final = 20.0
"""Of one question; the shim holds its answer that long where nothing happens."""
GRACE_S: Final = 1.0
"""How long a shim's own word on a missed deadline is waited for. The core waits a second longer."""

FAULTS: Final[dict[MigrationFault, MigrationFailure]] = {
    MigrationFault.NOTHING_TO_MOVE: "declined",
    MigrationFault.NOT_WORTH_IT: "declined",
    MigrationFault.TARGET_BUSY: "declined",
    MigrationFault.TARGET_FULL: "target_full",
    MigrationFault.MISMATCH: "mismatch",
    MigrationFault.WEIGHTS_CHANGED: "mismatch",
    MigrationFault.TARGET_UNREACHABLE: "unreachable",
    MigrationFault.DEADLINE: "deadline",
    MigrationFault.CANCELLED: "cancelled",
}
"""In the core's words; a fault that is not here is ``broken``."""


class MoveReports(Protocol):
    """The core's ear (live.driver.Driver)."""

    def migration_landed(self, migration: int, tokens: int) -> None: ...
    def migration_failed(self, migration: int, why: MigrationFailure) -> None: ...


@dataclass(frozen=True, slots=True)
class _End:
    """How a move ended, by the shim's word or for want of it."""

    state: MoveState
    failure: MigrationFailure | None = None
    status: MigrationStatus | None = None
    detail: str = ""


@dataclass(slots=True)
class _Running:
    action: Migrate
    live: LiveTrajectory
    began: float
    stop: asyncio.Event
    called_off: bool = False
    task: "asyncio.Task[None] | None" = None


class Mover:
    """One per process. ``worker_name``: of a worker by its id."""

    def __init__(
        self, links: ShimLinks, client: httpx.AsyncClient, worker_name: Callable[[int], str | None]
    ) -> None:
        self._links = links
        self._client = client
        self._worker_name = worker_name
        self._running: dict[int, _Running] = {}
        self._ended: deque[Move] = deque(maxlen=REMEMBERED)
        self._process: Final = uuid4().hex[:12]
        self._bytes_moved = 0
        self.reports: MoveReports | None = None
        self.record: Callable[[Move], None] = lambda move: None

    # ---------------------------------------------------------------- what the core wants

    def begin(self, action: Migrate, live: LiveTrajectory) -> None:
        running = _Running(action, live, time.monotonic(), asyncio.Event())
        self._running[action.migration] = running
        running.task = asyncio.create_task(self._carry_out(running))

    def cancel(self, action: CancelMigration) -> None:
        """Its end is reported by the task that runs it."""
        running = self._running.get(action.migration)
        if running is not None:
            running.called_off = True
            running.stop.set()

    # ---------------------------------------------------------------- what people see

    def shown(self, views: list[dict[str, Any]], directory: "Names") -> list[Move]:
        """Moves that have not ended (``views``: the core's), oldest first; those that have, newest first."""
        moves = [
            self._move(view, live) for view in views if (live := directory.by_handle(view["trajectory"]))
        ]
        # The core is done with a move whose worker died; its transfer has not stopped yet.
        known = {move.id for move in moves}
        stopping = [self._stopping(one) for number, one in self._running.items() if number not in known]
        return [*sorted([*moves, *stopping], key=lambda move: move.id), *reversed(self._ended)]

    def stats(self) -> dict[str, float]:
        """For the metrics."""
        return {"running": float(len(self._running)), "bytes_total": float(self._bytes_moved)}

    async def close(self) -> None:
        """Stops what runs; the shims give it up by its deadline."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()

    # ---------------------------------------------------------------- inside

    async def _carry_out(self, running: _Running) -> None:
        action = running.action
        try:
            async with asyncio.timeout(action.within_us / 1e6 + GRACE_S):
                end = await self._ask(running)
        except TimeoutError:
            end = _End(MoveState.EXPIRED, "deadline", detail="the shim said nothing within the deadline")
        except httpx.HTTPError as error:
            end = _End(MoveState.FAILED, "unreachable", detail=str(error) or type(error).__name__)
        except ValidationError as error:
            end = _End(MoveState.FAILED, "broken", detail=f"the shim's answer: {error.errors()[0]['msg']}")
        self._running.pop(action.migration, None)
        end = self._as_the_core_has_it(running, end)
        self._remember(running, end)
        if self.reports is None:
            return
        if end.failure is not None:
            log.info("migration %d: %s: %s", action.migration, end.failure, end.detail)
            self.reports.migration_failed(action.migration, end.failure)
        else:
            assert end.status is not None
            self.reports.migration_landed(action.migration, end.status.tokens_landed)

    def _as_the_core_has_it(self, running: _Running, end: _End) -> _End:
        """Of a move that the core called off it does not matter any more how the shim ended it."""
        action = running.action
        if not running.called_off or end.state is MoveState.EXPIRED:
            return end
        for worker, generation in (
            (action.from_worker, action.from_generation),
            (action.to_worker, action.to_generation),
        ):
            if not self._links.lives(worker, generation):
                why = f"worker {self._name(worker)} is gone"
                return _End(MoveState.FAILED, "unreachable", end.status, why)
        return _End(MoveState.CANCELLED, "cancelled", end.status, end.detail or "called off")

    async def _ask(self, running: _Running) -> _End:
        action = running.action
        source = self._links.shim(action.from_worker, action.from_generation)
        target = self._links.shim(action.to_worker, action.to_generation)
        if source is None or target is None:
            return _End(MoveState.FAILED, "unreachable", detail="a worker's shim is not known any more")
        if running.live.last_rid is None:
            return _End(MoveState.FAILED, "declined", detail="no step of this trajectory ran here")
        name = f"{self._process}-{action.migration}"
        request = MigrationRequest(
            id=name,
            trajectory=running.live.trajectory_id,
            target=target.url,
            rid=running.live.last_rid,
            weight_version=source.weight_version,
            deadline_s=action.within_us / 1e6,
            worth_s=action.worth_us / 1e6 if action.worth_us is not None else None,
        )
        url = f"{source.url}/shim/v1/migrations"
        answer = await self._client.post(
            url,
            content=request.model_dump_json(),
            headers=source.headers | {"content-type": "application/json"},
        )
        if answer.status_code == 409:
            return _End(MoveState.FAILED, "declined", detail=answer.text[:200])
        status = _status_in(answer)
        while not status.state.final:
            status = await self._next_word(running, f"{url}/{name}", source.headers)
        return _end_of(status)

    async def _next_word(self, running: _Running, url: str, headers: dict[str, str]) -> MigrationStatus:
        """The shim's next answer; a move that is called off is cancelled first, once."""
        if running.stop.is_set():
            running.stop.clear()
            return _status_in(await self._client.delete(url, headers=headers))
        asked = asyncio.create_task(
            self._client.get(url, params={"wait": f"{LONGEST_WAIT_S:g}"}, headers=headers)
        )
        stopped = asyncio.create_task(running.stop.wait())
        try:
            await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return _status_in(asked.result())
        finally:
            for task in (asked, stopped):
                task.cancel()
            await asyncio.gather(asked, stopped, return_exceptions=True)
        running.stop.clear()
        return _status_in(await self._client.delete(url, headers=headers))

    def _remember(self, running: _Running, end: _End) -> None:
        action, status = running.action, end.status
        moved = status.bytes_moved if status is not None else 0
        self._bytes_moved += moved
        move = Move(
            id=action.migration,
            process=self._process,
            trajectory_id=running.live.trajectory_id,
            tenant=running.live.tenant,
            from_worker=self._name(action.from_worker),
            to_worker=self._name(action.to_worker),
            state=end.state,
            asked_by="operator" if action.worth_us is None else "policy",
            tokens=action.tokens,
            tokens_landed=status.tokens_landed if status is not None else 0,
            bytes_moved=moved,
            seconds=time.monotonic() - running.began,
            fault=end.failure,
            detail=end.detail[:500],
            ended_at=time.time(),
        )
        self._ended.append(move)
        self.record(move)

    def _move(self, view: dict[str, Any], live: LiveTrajectory) -> Move:
        running = self._running.get(view["migration"])
        return Move(
            id=view["migration"],
            process=self._process,
            trajectory_id=live.trajectory_id,
            tenant=live.tenant,
            from_worker=self._name(view["from_worker"]),
            to_worker=self._name(view["to_worker"]),
            state=MoveState(view["state"]),
            asked_by=view["asked_by"],
            tokens=view["tokens"],
            seconds=time.monotonic() - running.began if running is not None else 0.0,
            step_waited=view["waited_for"],
        )

    def _stopping(self, running: _Running) -> Move:
        action = running.action
        return Move(
            id=action.migration,
            process=self._process,
            trajectory_id=running.live.trajectory_id,
            tenant=running.live.tenant,
            from_worker=self._name(action.from_worker),
            to_worker=self._name(action.to_worker),
            state=MoveState.CANCELLING,
            asked_by="operator" if action.worth_us is None else "policy",
            tokens=action.tokens,
            seconds=time.monotonic() - running.began,
        )

    def _name(self, worker_id: int) -> str:
        return self._worker_name(worker_id) or str(worker_id)


class Names(Protocol):
    """Live trajectories by the core's handle (live.directory.Directory)."""

    def by_handle(self, handle: int) -> LiveTrajectory | None: ...


def _status_in(answer: httpx.Response) -> MigrationStatus:
    """Raises httpx.HTTPStatusError, ValidationError."""
    return MigrationStatus.model_validate_json(answer.raise_for_status().content)


def _end_of(status: MigrationStatus) -> _End:
    if status.state is MigrationState.LANDED:
        return _End(MoveState.LANDED, status=status)
    failure: MigrationFailure = FAULTS.get(status.fault, "broken") if status.fault else "broken"
    state = {
        MigrationState.CANCELLED: MoveState.CANCELLED,
        MigrationState.EXPIRED: MoveState.EXPIRED,
    }.get(status.state, MoveState.FAILED)
    return _End(state, failure, status, status.detail)
