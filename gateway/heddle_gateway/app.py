"""The composition root: the one place where the gateway's parts meet.

``create_app`` builds the parts and the application; nothing starts before its lifespan does.

Invariant: parts know each other through the protocols they declare; only this file knows who fulfils them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from fastapi.exceptions import RequestValidationError
from heddle_contracts.admin import EndReason, HistoryStats, StepCounts, TrajectorySummary
from heddle_contracts.steps import Outcome
from starlette.exceptions import HTTPException

from heddle_gateway import __version__
from heddle_gateway.fleet.address import check_allowed_host, parse_worker_url
from heddle_gateway.fleet.errors import AddressRefused
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.fleet.tuning import FleetTuning
from heddle_gateway.heddle_app import HeddleApp, StartError
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.lifetime import Gateway, lifespan_of
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.policy import PolicyRefused, new_core
from heddle_gateway.moving import MovingKv
from heddle_gateway.outliving import open_outliving
from heddle_gateway.peering import Peering, process_name
from heddle_gateway.planning import Planning
from heddle_gateway.routes.admin import AdminDeps, admin_router
from heddle_gateway.routes.admin_fleet import FleetControl
from heddle_gateway.routes.admin_live import LiveListing
from heddle_gateway.routes.admin_migrations import MigrationDeps, migrations_router
from heddle_gateway.routes.data import data_endpoints
from heddle_gateway.routes.new_weights import new_weights_router
from heddle_gateway.routes.ops import OpsDeps, ops_router
from heddle_gateway.routes.plain_errors import invalid_request_error, plain_error
from heddle_gateway.routes.registry import RegistryDeps, registry_router, session_router
from heddle_gateway.routes.registry_live import FrameworkView
from heddle_gateway.routes.stored_answers import StoredDeps, stored_router
from heddle_gateway.running_step import RunningSteps
from heddle_gateway.serve_step import StepServer
from heddle_gateway.settings import Settings
from heddle_gateway.shared_state import SharedState
from heddle_gateway.side_questions import SideQuestions
from heddle_gateway.store.engine import StoreError, open_engine, spill_beside
from heddle_gateway.store.history_reader import HistoryReader
from heddle_gateway.store.move_history import MoveHistory
from heddle_gateway.store.plan_history import PlanHistory
from heddle_gateway.store.step_writer import StepWriter
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter
from heddle_gateway.telemetry.live_mirror import MirrorStats
from heddle_gateway.telemetry.metrics import Metrics
from heddle_gateway.telemetry.step_log import log_step
from heddle_gateway.upstream.forward import Upstream
from heddle_gateway.upstream.pool import PoolLimits
from heddle_gateway.worker_events import WorkerEvents

log = logging.getLogger(__name__)

# What a new process takes up of the history: as far back as identity remembers, the newest first.
RESTORE_AGE_S: Final = 6 * 3600.0
RESTORE_TIMEOUT_S: Final = 20.0
HISTORY_COUNTERS: Final = (
    "put",
    "written",
    "dropped",
    "refused",
    "recovered",
    "not_on_disk",
    "failed_writes",
)


def create_app(settings: Settings) -> HeddleApp:
    """The ASGI application. Raises StartError for a policy or a database that cannot be."""
    try:
        core = new_core(settings.policy, journal=settings.journal_path is not None)
    except PolicyRefused as error:
        raise StartError(f"policy: {error}") from error
    try:
        engine = open_engine(settings.database)
    except ValueError as error:
        raise StartError(f"database: {error}") from error
    for worker in settings.workers:
        try:
            check_allowed_host(parse_worker_url(worker.url), settings.worker_hosts)
        except AddressRefused as error:
            raise StartError(f"workers: {error}") from error
    started_at = time.time()
    book = TrajectoryBook(capacity=settings.max_trajectories, session_headers=settings.session_headers)
    history = HistoryWriter(
        StepWriter(engine, settings.namespace),
        HistoryLimits(spill_folder=settings.history_spill or spill_beside(settings.database)),
    )

    def forget(live: LiveTrajectory, reason: str) -> None:
        book.forget(live.tenant, live.trajectory_id)
        end = EndReason.FINISHED if reason == "finished" else EndReason.EXPIRED
        now = time.time()
        if live.has_arrived:
            history.put_trajectory_end(live.tenant, live.trajectory_id, end, now)
        planning.trajectory_over(live, finished=reason == "finished", at=now)
        if shared is not None:
            shared.mirror.ended(live.tenant, live.trajectory_id)

    planning = Planning(settings, lambda worker_id: events.name(worker_id))
    driver = Driver(
        core,
        Directory(),
        max_trajectories=settings.max_trajectories,
        on_expire=forget,
        on_first_step=planning.first_step,
    )
    try:
        planning.open(driver, history.put, PlanHistory(engine, settings.namespace))
    except ValueError as error:
        raise StartError(f"planner: {error}") from error
    book.announced = driver.directory.announced
    events = WorkerEvents(driver)
    events.on_changed = planning.workers_changed
    moving = events.moving = MovingKv(driver, events.name, history.put)
    shared = _shared_state(settings, process_name(settings), book, driver, events.name)
    tuning = FleetTuning(allowed_hosts=settings.worker_hosts, one_model=settings.check_models)
    fleet = Fleet(events, driver.live_steps_on, tuning)
    outliving = None
    if shared is not None:
        outliving = open_outliving(
            settings, fleet, planning, driver, shared.mirror, lambda: peering.role == "alone"
        )
        planning.rollouts_saved = outliving.rollouts.saved
    upstream = Upstream(
        PoolLimits(
            connect_timeout_s=settings.connect_timeout_s,
            keepalive_s=settings.worker_keepalive_s,
            idle_timeout_s=settings.idle_timeout_s,
            max_connections=settings.worker_connections,
        )
    )

    def live_state_numbers() -> dict[str, float]:
        assert shared is not None
        assert outliving is not None
        behind = float(outliving.rollouts.behind)
        return _mirror_numbers(shared.mirror.stats()) | {"rollouts_behind": behind}

    metrics = Metrics(
        fleet.served.listed,
        {
            "core": driver.stats,
            "fleet": fleet.stats,
            "history": lambda: _numbers(history.stats()),
            "upstream": upstream.stats,
            "planner": planning.stats,
            "plans": planning.keeper.stats,
            "migrations": moving.stats,
            **({"live_state": live_state_numbers} if shared is not None else {}),
            **({"peers": lambda: peering.stats()} if shared is not None else {}),
        },
    )
    events.on_removed = metrics.forget_worker
    past = HistoryReader(engine)
    running = RunningSteps()
    stored = StoredAnswers(fleet)
    peering = Peering(
        settings,
        shared=shared,
        outliving=outliving,
        book=book,
        driver=driver,
        fleet=fleet,
        upstream=upstream,
        running=running,
        stored=stored,
        sinks=(planning.step_ended, *((shared.step_ended,) if shared is not None else ())),
        past=lambda: take_up_the_past(past, book, settings.max_trajectories),
    )
    events.before_change = peering.fleet_changes
    steps = StepServer(
        desks=peering.desks,
        models=fleet.served,
        upstream=upstream,
        running=running,
        stored=stored,
        sinks=(history.put, metrics.step_ended, *((log_step,) if settings.access_log else ())),
        on_refused=metrics.refused,
        max_body_bytes=settings.max_body_bytes,
        ping_period_s=settings.ping_period_s,
    )
    gateway = Gateway(
        settings,
        driver,
        fleet,
        book,
        upstream,
        history,
        past,
        metrics,
        steps,
        planning,
        moving,
        peering,
        shared,
        outliving,
    )

    app = HeddleApp(
        title="Heddle gateway",
        version=__version__,
        lifespan=lifespan_of(gateway, engine.dispose),
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.include_router(
        ops_router(
            OpsDeps(
                fleet=fleet,
                models=fleet.served,
                history_state=lambda: history.stats().state.value,
                live_state=lambda: "memory" if shared is None else shared.mirror.stats().state.value,
                role=lambda: (peering.role, peering.leader, peering.epoch, peering.alone_because),
                planner_state=lambda: planning.keeper.planner_state,
                is_paused=lambda: driver.stats()["dispatch_paused"] > 0,
                metrics=metrics.exposition,
                started_at=started_at,
            )
        )
    )
    listing = LiveListing(driver, events.name)
    app.include_router(
        admin_router(
            AdminDeps(
                live=listing,
                history=past,
                policy=driver,
                workers=FleetControl(fleet),
                step_counts=lambda: _step_counts(driver.stats()),
                core_stats=driver.stats,
                core_audit=driver.audit,
                history_stats=history.stats,
            )
        )
    )
    for router in planning.routers(listing):
        app.include_router(router)
    app.include_router(
        migrations_router(MigrationDeps(driver, moving.moves, MoveHistory(engine), fleet.list))
    )
    registry = RegistryDeps(fleet=fleet, live=FrameworkView(running, driver, peering.abort_elsewhere))
    app.include_router(registry_router(registry))
    app.include_router(session_router(registry))
    app.include_router(new_weights_router(fleet))
    app.add_exception_handler(HTTPException, plain_error)
    app.add_exception_handler(RequestValidationError, invalid_request_error)
    app.include_router(stored_router(StoredDeps(fleet, stored)))
    questions = SideQuestions(fleet, fleet.served, upstream, settings.max_body_bytes)
    app.open_door(settings, data_endpoints(steps, questions), peering.proxied)
    return app


async def take_up_the_past(past: HistoryReader, book: TrajectoryBook, capacity: int) -> None:
    """Step numbers of named trajectories go on after a restart. Without the database they begin anew."""
    now, clock = time.time(), time.monotonic()
    recent: list[TrajectorySummary] = []
    try:
        async with asyncio.timeout(RESTORE_TIMEOUT_S):
            async for page in past.recent(now - RESTORE_AGE_S, capacity):
                recent += page
    except (StoreError, TimeoutError) as error:
        why = error or "the database is slow"
        log.warning("of trajectories of an earlier run the newest %d are taken up: %s", len(recent), why)
    for trajectory in reversed(recent):
        book.restore(trajectory, clock - max(0.0, now - trajectory.last_seen))


def _shared_state(
    settings: Settings,
    name: str,
    book: TrajectoryBook,
    driver: Driver,
    worker_name: Callable[[int], str | None],
) -> SharedState | None:
    """Raises StartError for a URL that is none."""
    if settings.redis_url is None:
        return None
    try:
        return SharedState(settings, settings.redis_url.get_secret_value(), name, book, driver, worker_name)
    except ValueError as error:
        raise StartError(f"redis_url: {error}") from error


def _step_counts(stats: dict[str, int]) -> StepCounts:
    return StepCounts(
        started=stats["steps_arrived_total"],
        in_flight=stats["steps_live"],
        ended={outcome: stats[f"steps_{outcome.value}_total"] for outcome in Outcome},
    )


def _numbers(stats: HistoryStats) -> dict[str, float]:
    """For the metrics: what only grows is a counter there."""
    counters = {name: getattr(stats, name) for name in HISTORY_COUNTERS}
    return {f"{name}_total": float(count) for name, count in counters.items()} | {
        "queued": float(stats.queued),
        "capacity": float(stats.capacity),
        "spilled": float(stats.spilled),
    }


def _mirror_numbers(stats: MirrorStats) -> dict[str, float]:
    counters = {"written_total": stats.written, "refused_total": stats.refused, "failed_total": stats.failed}
    return {name: float(count) for name, count in counters.items()} | {"behind": float(stats.behind)}
