"""All parts of one gateway, and what begins and ends with it, in which order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI

from heddle_gateway.fleet.errors import FleetError
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.fleet.features import EngineKind, PrioritySense
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.fleet.state import WorkerState
from heddle_gateway.heddle_app import StartError
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.journal import JournalWriter
from heddle_gateway.moving import MovingKv
from heddle_gateway.outliving import Outliving
from heddle_gateway.peering import Peering
from heddle_gateway.planning import Planning
from heddle_gateway.serve_step import StepServer
from heddle_gateway.settings import Settings, WorkerSetting
from heddle_gateway.shared_state import SharedState
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.telemetry.history import HistoryWriter
from heddle_gateway.telemetry.metrics import Metrics
from heddle_gateway.upstream.forward import Upstream

HISTORY_CLOSE_S: Final = 10.0
# How long a start waits for the workers that hold trajectories' KV; one that is gone holds it up for so long.
HOMES_WAIT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """All parts of one gateway, wired. Also what tests look into: ``app.state.gateway``."""

    settings: Settings
    driver: Driver
    fleet: Fleet
    book: TrajectoryBook
    upstream: Upstream
    history: HistoryWriter
    past: HistoryReader
    metrics: Metrics
    steps: StepServer
    planning: Planning
    moving: MovingKv
    peering: Peering
    shared: SharedState | None
    """None where live state stays in this process."""
    outliving: Outliving | None


def lifespan_of(gateway: Gateway, dispose: Callable[[], Awaitable[None]]) -> Any:
    """What begins and ends with the application, in which order."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        journal = None
        if gateway.settings.journal_path is not None:
            journal = JournalWriter(gateway.driver.take_journal, gateway.settings.journal_path)
        await gateway.history.start()
        for worker in gateway.settings.workers:
            try:
                await gateway.fleet.add(_spec(worker))
            except (FleetError, ValueError) as error:
                # More than the fleet holds, a host that may be no worker, a number that cannot be.
                raise StartError(f"workers: {error}") from error
        await gateway.peering.start()
        await gateway.planning.take_up()
        if gateway.outliving is not None:
            await gateway.outliving.start()
        await _until_homes_serve(gateway)
        journalling = asyncio.create_task(journal.run()) if journal is not None else None
        gateway.planning.start()
        try:
            yield
        finally:
            # It writes a last time, and only the holder of the lease may: peering gives it back.
            if gateway.outliving is not None:
                await gateway.outliving.close()
            await gateway.peering.close()
            await gateway.planning.close()
            await gateway.fleet.close()
            await gateway.moving.close()
            await gateway.steps.close()
            gateway.upstream.close()
            gateway.driver.close()
            if journal is not None and journalling is not None:
                journal.stop()
                await journalling
            if gateway.shared is not None:
                await gateway.shared.close()
            await gateway.history.close(HISTORY_CLOSE_S)
            await dispose()

    return lifespan


async def _until_homes_serve(gateway: Gateway) -> None:
    """Agents ask again at once after a restart: before their homes are looked at they would be sent anywhere,
    away from their KV. Until this returns they wait in the listening socket.
    """
    homes = gateway.driver.directory.homes_awaited
    probing = WorkerState.PROBING
    with suppress(TimeoutError):
        async with asyncio.timeout(HOMES_WAIT_S):
            while any(one.name in homes and one.state is probing for one in gateway.fleet.list()):
                await gateway.fleet.changed()


def _spec(setting: WorkerSetting) -> WorkerSpec:
    return WorkerSpec(
        url=setting.url,
        name=setting.name,
        kind=EngineKind(setting.kind) if setting.kind else None,
        model=setting.model,
        degree=setting.degree,
        slots=setting.slots,
        kv_tokens=setting.kv_tokens,
        priority=PrioritySense(setting.priority) if setting.priority else None,
        api_key=setting.api_key.get_secret_value() if setting.api_key else None,
    )
