"""Migrations from this shim's engine: started, watched, cancelled; each ends in exactly one final state.

    accepted ─▶ moving ─▶ landed | failed | cancelled | expired
        └─────▶ declined | failed | cancelled

The gateway's core decides who moves where and when. A shim only refuses: what cannot fit, what cannot be in
time, what would cost more than it saves.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from heddle_contracts.kv import (
    Handshake,
    MigrationFault,
    MigrationRequest,
    MigrationState,
    MigrationStatus,
)

from heddle_shim.transfer.engine_side import EngineSide, Offer, PageSource
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.peer import AskPeer, Peers
from heddle_shim.transfer.transport import Progress, Transport

log = logging.getLogger(__name__)

MAX_RUNNING: Final = 4
"""Migrations from here at once; the gateway starts one an endpoint."""
MAX_REMEMBERED: Final = 1024
"""Ended ones that can still be asked for."""
RATE_MEMORY: Final = 0.3
"""Weight of the newest transfer in the rate that is expected of the next one."""
RATE_MIN_BYTES: Final = 1 << 20
"""Smaller transfers say nothing about the rate."""
UNSEEN_BYTES_S: Final = 1.25e9
"""Expected until a transfer has shown more: 10 Gbit/s."""
HOPE: Final = 1.1
"""The expected rate grows by this with each move that is declined for it: one slow transfer must not end all
moves for good, and only a move shows that the link is better by now.
"""

MOVES: Final[dict[MigrationState, frozenset[MigrationState]]] = {
    MigrationState.ACCEPTED: frozenset(
        {
            MigrationState.MOVING,
            MigrationState.DECLINED,
            MigrationState.FAILED,
            MigrationState.CANCELLED,
            MigrationState.EXPIRED,
        }
    ),
    MigrationState.MOVING: frozenset(
        {
            MigrationState.LANDED,
            MigrationState.FAILED,
            MigrationState.CANCELLED,
            MigrationState.EXPIRED,
        }
    ),
}


class TooManyMigrations(Exception):
    """As many run here as may."""


class UnknownMigration(KeyError):
    """No migration of this id is remembered."""


@dataclass(slots=True, eq=False)
class _Migration:
    request: MigrationRequest
    started: float
    state: MigrationState = MigrationState.ACCEPTED
    progress: Progress = field(default_factory=Progress)
    fault: MigrationFault | None = None
    detail: str = ""
    pages: int = 0
    page_size: int = 0
    expected_s: float | None = None
    ended: float | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def move(self, to: MigrationState) -> None:
        if to not in MOVES.get(self.state, frozenset()):
            raise AssertionError(f"illegal move of a migration: {self.state} to {to}")
        self.state = to

    def status(self, now: float) -> MigrationStatus:
        progress = self.progress
        return MigrationStatus(
            id=self.request.id,
            trajectory=self.request.trajectory,
            target=self.request.target,
            state=self.state,
            fault=self.fault,
            detail=self.detail,
            pages=self.pages,
            pages_present=progress.present or 0,
            pages_moved=progress.moved,
            tokens_landed=progress.complete * self.page_size,
            bytes_moved=progress.bytes,
            seconds=(self.ended if self.ended is not None else now) - self.started,
            expected_s=self.expected_s,
            attempts=progress.attempts,
        )


class Migrations:
    """All migrations out of one engine. Runs on one event loop; ``close`` before it ends."""

    def __init__(
        self,
        engine: EngineSide,
        transports: Sequence[Transport],
        *,
        ask: AskPeer | None = None,
        bytes_per_second: float | None = None,
    ) -> None:
        """``transports``: by preference, the first that both sides have is used. ``ask``: how another shim's
        handshake is got; by default over HTTP. ``bytes_per_second``: what is expected before the first
        transfer; None where nothing is known.
        """
        self._peers = Peers()
        self._engine = engine
        self._transports = tuple(transports)
        self._ask = ask or self._peers.ask
        self._rate = bytes_per_second
        self._known: OrderedDict[str, _Migration] = OrderedDict()

    @property
    def rate(self) -> float | None:
        """Bytes a second that the next transfer is expected to have."""
        return self._rate

    @property
    def running(self) -> int:
        """Migrations that have not ended."""
        return sum(not migration.state.final for migration in self._known.values())

    def start(self, request: MigrationRequest) -> MigrationStatus:
        """Starts a migration; one of the same id is not started again.

        Raises:
            TooManyMigrations: as many run as may.
        """
        now = asyncio.get_running_loop().time()
        known = self._known.get(request.id)
        if known is not None:
            return known.status(now)
        if self.running >= MAX_RUNNING:
            raise TooManyMigrations(f"{MAX_RUNNING} migrations run from this worker; ask again when one ends")
        migration = _Migration(request, now)
        self._known[request.id] = migration
        self._forget_oldest()
        migration.task = asyncio.create_task(self._run(migration))
        migration.task.add_done_callback(lambda _: _see_to_the_end(migration))
        return migration.status(now)

    async def wait(self, migration_id: str, seconds: float) -> MigrationStatus:
        """Its status once it has ended, or after ``seconds``.

        Raises:
            UnknownMigration: there is none of this id.
        """
        migration = self._get(migration_id)
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await migration.over.wait()
            except TimeoutError:
                pass
        return migration.status(asyncio.get_running_loop().time())

    async def cancel(self, migration_id: str) -> MigrationStatus:
        """Cancels it and waits for its end; one that has ended stays as it is.

        Raises:
            UnknownMigration: there is none of this id.
        """
        migration = self._get(migration_id)
        if not migration.state.final and migration.task is not None:
            migration.task.cancel()
            await migration.over.wait()
        return migration.status(asyncio.get_running_loop().time())

    def list(self) -> tuple[MigrationStatus, ...]:
        """All that are remembered, newest first."""
        now = asyncio.get_running_loop().time()
        return tuple(migration.status(now) for migration in reversed(self._known.values()))

    async def close(self) -> None:
        """Cancels what runs. Safe to repeat."""
        tasks = [one.task for one in self._known.values() if one.task is not None and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._peers.close()

    def _get(self, migration_id: str) -> _Migration:
        try:
            return self._known[migration_id]
        except KeyError:
            raise UnknownMigration(migration_id) from None

    def _forget_oldest(self) -> None:
        while len(self._known) > MAX_REMEMBERED:
            oldest = next((key for key, one in self._known.items() if one.state.final), None)
            if oldest is None:
                return
            del self._known[oldest]

    # ------------------------------------------------------------------------------------ one migration

    async def _run(self, migration: _Migration) -> None:
        end, fault = MigrationState.LANDED, None
        try:
            async with asyncio.timeout(migration.request.deadline_s):
                await self._move(migration)
        except TransferFault as error:
            declined = error.fault is MigrationFault.NOT_WORTH_IT
            end, fault = MigrationState.DECLINED if declined else MigrationState.FAILED, error
        except TimeoutError:
            end = MigrationState.EXPIRED
            fault = TransferFault(
                MigrationFault.DEADLINE, f"deadline_s: not done within {migration.request.deadline_s:g} s"
            )
        except asyncio.CancelledError:
            end = MigrationState.CANCELLED
            fault = TransferFault(MigrationFault.CANCELLED, "cancelled by who asked, or as the shim ended")
        except Exception as error:
            log.exception("migration %s of %s failed", migration.request.id, migration.request.trajectory)
            end = MigrationState.FAILED
            fault = TransferFault(MigrationFault.ENGINE, f"{type(error).__name__}: {error}")
        if fault is not None:
            migration.fault, migration.detail = fault.fault, fault.detail
        migration.move(end)

    async def _move(self, migration: _Migration) -> None:
        loop = asyncio.get_running_loop()
        request = migration.request
        if (reason := self._engine.cannot_migrate()) is not None:
            raise TransferFault(MigrationFault.ENGINE, f"nothing can be moved from here: {reason}")
        source = await self._engine.open_source(request)
        try:
            layout = source.namespace.layout
            migration.pages, migration.page_size = len(source.hashes), layout.page_size
            peer = await self._ask(request.target)
            transport, address = self._fitting(source, peer, request.target)

            def weigh(missing: int) -> None:
                self._refuse_if_too_slow(migration, layout.page_bytes * missing)
                migration.move(MigrationState.MOVING)

            left = migration.started + request.deadline_s - loop.time()
            offer = Offer(request.id, request.trajectory, source.namespace, tuple(source.hashes), left)
            try:
                await transport.push(address, offer, source, migration.progress, weigh)
            finally:
                # One that ran out of time shows the rate too.
                self._learn(migration.progress)
        finally:
            await source.close()
        if not migration.progress.complete:
            raise TransferFault(
                MigrationFault.NOTHING_TO_MOVE, "the source lost the first page before it could be sent"
            )

    def _refuse_if_too_slow(self, migration: _Migration, size: int) -> None:
        """``size``: bytes of the pages that the target lacks."""
        request = migration.request
        rate = self._rate or UNSEEN_BYTES_S
        expected = migration.expected_s = size / rate
        if expected > min(request.worth_s or math.inf, request.deadline_s) and self._rate is not None:
            self._rate *= HOPE
        if request.worth_s is not None and expected > request.worth_s:
            raise TransferFault(
                MigrationFault.NOT_WORTH_IT,
                f"worth_s: {size} bytes at {rate:.3g} bytes/s take {expected:.3g} s; re-prefill takes"
                f" {request.worth_s:.3g} s",
            )
        if expected > request.deadline_s:
            raise TransferFault(
                MigrationFault.NOT_WORTH_IT,
                f"deadline_s: {size} bytes at {rate:.3g} bytes/s take {expected:.3g} s, more than the"
                f" {request.deadline_s:.3g} s there are",
            )

    def _fitting(self, source: PageSource, peer: Handshake, url: str) -> tuple[Transport, str]:
        if peer.cannot_migrate is not None or peer.namespace is None:
            reason = peer.cannot_migrate or "its engine's pages are not known yet"
            raise TransferFault(MigrationFault.ENGINE, f"nothing can be moved to the target: {reason}")
        if (fault := source.namespace.mismatch(peer.namespace)) is not None:
            raise TransferFault(MigrationFault.MISMATCH, fault)
        for transport in self._transports:
            if (address := peer.transports.get(transport.name)) is not None:
                return transport, _reachable(address, url)
        raise TransferFault(
            MigrationFault.MISMATCH,
            f"transports: {[one.name for one in self._transports]} here, {sorted(peer.transports)} there",
        )

    def _learn(self, progress: Progress) -> None:
        """From the first page on: what comes before it takes as long for a small move as for a large one."""
        if progress.bytes < RATE_MIN_BYTES or progress.first_page_at is None:
            return
        seconds = asyncio.get_running_loop().time() - progress.first_page_at
        if seconds > 0:
            seen = progress.bytes / seconds
            self._rate = seen if self._rate is None else self._rate + RATE_MEMORY * (seen - self._rate)


def _reachable(address: str, url: str) -> str:
    """The address of a receiver that listens on all addresses: that of its shim, which was just asked."""
    host, _, port = address.rpartition(":")
    if host not in {"0.0.0.0", "[::]"}:
        return address
    found = urlsplit(url).hostname or host
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def _see_to_the_end(migration: _Migration) -> None:
    """Its task is over. One that was cancelled before it began has not ended by itself."""
    if not migration.state.final:
        migration.fault, migration.detail = MigrationFault.CANCELLED, "cancelled before it began"
        migration.move(MigrationState.CANCELLED)
    migration.ended = asyncio.get_running_loop().time()
    migration.over.set()
    log.info("migration ended: %s", migration.status(migration.ended))
