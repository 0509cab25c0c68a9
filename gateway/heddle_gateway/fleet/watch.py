"""The watch over one worker: asks until it is there, probes while it serves, notices when it is another
one.
"""

import asyncio
import time

from heddle_gateway.fleet.engines import ENGINES
from heddle_gateway.fleet.engines.description import same_life
from heddle_gateway.fleet.errors import AddressRefused, AskFailed, StillStarting
from heddle_gateway.fleet.health import Verdict
from heddle_gateway.fleet.probe import identify
from heddle_gateway.fleet.reports import FleetReports
from heddle_gateway.fleet.state import WAITING, WorkerState
from heddle_gateway.fleet.worker import Worker


async def watch(fleet: FleetReports, worker: Worker) -> None:
    """Runs until the worker is removed. May be started again at any point: all its state is the worker's."""
    while worker.state is not WorkerState.REMOVED:
        started_at = time.monotonic()
        if worker.state in WAITING:
            delay = await try_to_activate(fleet, worker)
        else:
            delay = await probe(fleet, worker, started_at)
        await _rest(worker, delay)
        spacing = started_at + fleet.tuning.probe_spacing_s - time.monotonic()
        if spacing > 0:
            await asyncio.sleep(spacing)


async def try_to_activate(fleet: FleetReports, worker: Worker) -> float:
    """Asks the worker who it is. Returns the seconds to wait before the next question."""
    try:
        found = await identify(
            fleet.asking(worker, fleet.tuning.probe_timeout_s), worker.spec, worker.address
        )
    except (AskFailed, AddressRefused) as error:
        if worker.state not in WAITING:
            return 0.0
        worker.last_error = str(error)
        worker.activation_failures += 1
        if isinstance(error, StillStarting):
            fleet.settle(worker, WorkerState.PROBING)
        else:
            fleet.settle(worker, WorkerState.DOWN if worker.generation else WorkerState.PROBING)
        return fleet.tuning.activation_backoff.delay(worker.activation_failures)
    if worker.state in WAITING:  # it may have been removed while we asked
        fleet.take(worker, found)
    return fleet.tuning.probe_period_s


async def probe(fleet: FleetReports, worker: Worker, started_at: float) -> float:
    """One periodic probe. Returns the seconds to wait before the next."""
    if worker.facts is None:
        raise RuntimeError(f"worker {worker.worker_id} serves without facts")
    try:
        vitals = await ENGINES[worker.facts.kind].check(fleet.asking(worker, fleet.tuning.probe_timeout_s))
    except AskFailed as error:
        return _judge(fleet, worker, error, started_at)
    if worker.state in WAITING or worker.state is WorkerState.REMOVED:
        return 0.0
    if not same_life(worker.vitals.life, vitals.life):
        fleet.lost(worker, "its server was started again")
        return 0.0
    worker.ledger.probe_answered()
    worker.last_error = None
    fleet.seen(worker, vitals)
    if worker.state is WorkerState.SUSPECT:
        fleet.settle(worker, WorkerState.ACTIVE)
    return fleet.tuning.probe_period_s


def _judge(fleet: FleetReports, worker: Worker, error: AskFailed, started_at: float) -> float:
    if worker.state in WAITING or worker.state is WorkerState.REMOVED:
        return 0.0
    verdict = worker.ledger.probe_failed(error, started_at)
    worker.last_error = str(error)
    if verdict is Verdict.BUSY:
        worker.busy_probes += 1
        return fleet.tuning.probe_period_s
    worker.probe_failures += 1
    if verdict is Verdict.DOWN:
        fleet.lost(worker, str(error))
        return 0.0
    if worker.state is not WorkerState.DRAINING:
        fleet.settle(worker, WorkerState.SUSPECT)
    return fleet.tuning.confirm_delay_s if verdict is Verdict.CONFIRM else fleet.tuning.probe_period_s


async def _rest(worker: Worker, delay: float) -> None:
    """Sleeps, or wakes early when the byte path saw a failure or the worker was removed."""
    try:
        async with asyncio.timeout(delay):
            await worker.wake.wait()
    except TimeoutError:
        pass
    worker.wake.clear()
