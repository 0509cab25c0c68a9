"""What a worker says of its load: told by its shim, or polled where it has none that speaks."""

import asyncio
import time

from heddle_gateway.fleet.engines import ENGINES
from heddle_gateway.fleet.errors import AskFailed
from heddle_gateway.fleet.reports import FleetReports
from heddle_gateway.fleet.state import SERVING
from heddle_gateway.fleet.worker import Worker


async def poll_loads(fleet: FleetReports, worker: Worker, generation: int) -> None:
    """Runs as long as this life of the worker serves. A late or failed answer is dropped and counted.

    Health is not judged here: a report that fails says nothing that the probe will not say.
    """
    tuning = fleet.tuning
    while worker.generation == generation and worker.state in SERVING and worker.facts is not None:
        started_at = time.monotonic()
        if started_at - worker.reported_at < tuning.report_fresh_s:
            await asyncio.sleep(tuning.load_period_s)
            continue
        engine = ENGINES[worker.facts.kind]
        try:
            sample = await engine.load(fleet.asking(worker, tuning.load_timeout_s), worker.facts.kv_tokens)
        except AskFailed:
            worker.stale_loads += 1
        else:
            told = worker.reported_at > started_at  # its shim was quicker, and is what counts
            late = time.monotonic() - started_at > tuning.load_timeout_s
            if late or worker.generation != generation or worker.state not in SERVING:
                worker.stale_loads += 1
            elif not told:
                fleet.loaded(worker, sample)
        await asyncio.sleep(tuning.load_period_s)
