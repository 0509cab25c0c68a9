"""The fleet: which workers there are, in which state, and what each can do.

All changes of state happen here, in the event loop's thread, each told to the listener in order. Background
tasks (watch.py, loads.py, draining) only ask and report; they are supervised one by one.

Invariants: a URL names at most one worker that is not draining; ids are never reused; an endpoint is handed
out only for the current generation of a worker that serves; the listener hears worker_up before anything
else about a generation and worker_removed last.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
from heddle_contracts.shim import WorkerReport

from heddle_gateway.fleet.address import check_resolved, parse_allowed_url, parse_worker_url
from heddle_gateway.fleet.asking import Asking, new_admin_client
from heddle_gateway.fleet.engines.description import Description, LoadSample, Vitals
from heddle_gateway.fleet.engines.openai_compatible import listed_models
from heddle_gateway.fleet.errors import AskFailed, FleetFull, UnknownWorker, Unreachable, WorkerTakenOut
from heddle_gateway.fleet.events import FailureKind, FleetListener, WorkerEndpoint, WorkerFacts, WorkerSpec
from heddle_gateway.fleet.health import HealthLedger
from heddle_gateway.fleet.loads import poll_loads
from heddle_gateway.fleet.probe import facts_of
from heddle_gateway.fleet.served_models import ServedModels
from heddle_gateway.fleet.state import SERVING, TAKING, WAITING, WorkerState
from heddle_gateway.fleet.taken_out import TakenOut
from heddle_gateway.fleet.tuning import FleetTuning
from heddle_gateway.fleet.watch import watch
from heddle_gateway.fleet.worker import Worker, WorkerView, endpoint_of, view_of
from heddle_gateway.supervision import Supervisor

log = logging.getLogger(__name__)


class Fleet:
    """One per process. ``live_steps(worker_id)`` counts the steps that run on a worker now (the core
    knows).
    """

    def __init__(
        self,
        listener: FleetListener,
        live_steps: Callable[[int], int],
        tuning: FleetTuning | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._tuning = tuning or FleetTuning()
        self._listener = listener
        self._live_steps = live_steps
        self._client = client or new_admin_client()
        self._supervisor = Supervisor(self._tuning.restart_backoff)
        self._workers: dict[int, Worker] = {}
        self.served = ServedModels(self._workers, self._ask_models, strict=self._tuning.one_model)
        self._by_url: dict[str, Worker] = {}
        self.taken_out = TakenOut()
        self._endpoints: dict[int, WorkerEndpoint] = {}
        self._next_id = 1
        self._change = asyncio.Event()

    # ------------------------------------------------------------------ the byte path: plain look-ups

    def worker(self, worker_id: int, generation: int) -> WorkerEndpoint | None:
        """Where to send a step; None where that life of the worker is over."""
        endpoint = self._endpoints.get(worker_id)
        return endpoint if endpoint is not None and endpoint.generation == generation else None

    def living(self, url: str) -> tuple[int, int] | None:
        """(id, generation) of the worker behind this URL (an endpoint's), if it can be sent to."""
        worker = self._by_url.get(url)
        endpoint = self._endpoints.get(worker.worker_id) if worker is not None else None
        return (endpoint.worker_id, endpoint.generation) if endpoint is not None else None

    def note_success(self, worker_id: int, generation: int) -> None:
        """Bytes of an answer came. Cheap enough to call for each chunk."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.generation == generation:
            worker.ledger.sign_of_life(time.monotonic())

    def note_failure(self, worker_id: int, generation: int, kind: FailureKind) -> None:
        """An attempt failed. Unreachable: the worker is probed at once, and the probe decides."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.generation != generation:
            return
        worker.passive_failures += 1
        if kind == "unreachable" and worker.state in SERVING:
            worker.wake.set()

    # ------------------------------------------------------------------ what people ask

    async def add(self, spec: WorkerSpec) -> WorkerView:
        """Registers a worker and returns at once; it becomes active when it answers, however late.

        Adding a URL again returns the worker that has it, with the shim and key given now. A draining one
        does not count: its server came back under a new id. Raises AddressRefused, FleetFull.
        """
        address = parse_allowed_url(spec.url, self._tuning.allowed_hosts)
        try:
            await check_resolved(address)
        except Unreachable as error:
            log.info("worker %s is not reachable yet: %s", address.url, error)
        if spec.shim_url is not None:
            spec = replace(spec, shim_url=parse_allowed_url(spec.shim_url, self._tuning.allowed_hosts).url)
        self.taken_out.forget(address.url)
        if (known := self._by_url.get(address.url)) is not None:
            self._learn(known, spec)
            return self._view(known)
        if len(self._workers) >= self._tuning.max_workers:
            raise FleetFull(self._tuning.max_workers)
        worker = Worker(
            worker_id=self._next_id,
            spec=spec,
            address=address,
            ledger=self._new_ledger(),
            state_since=time.monotonic(),
        )
        self._next_id += 1
        self._workers[worker.worker_id] = worker
        self._by_url[address.url] = worker
        self._supervisor.start(f"watch:{worker.worker_id}", lambda: watch(self, worker))
        self._changed()
        return self._view(worker)

    def drain(self, worker_id: int, *, stays_out: bool = True) -> WorkerView:
        """Takes a worker out: no new steps, its running ones may end (bounded), then it is removed.

        One that does not serve is removed at once. Draining twice changes nothing. ``stays_out``: its shim
        is told to stay away until it is added again. Raises UnknownWorker.
        """
        worker = self._known(worker_id)
        if stays_out and self._by_url.get(worker.address.url) is worker:
            self.taken_out.note(worker.address.url)
        if worker.state in WAITING:
            self.remove(worker)
        elif worker.state is not WorkerState.DRAINING:
            self._move(worker, WorkerState.DRAINING)
            worker.drain_deadline = time.monotonic() + self._tuning.drain_timeout_s
            self._forget_url(worker)
            self._listener.worker_draining(worker_id, worker.generation)
            self._look_aside()
            self._supervisor.start(f"drain:{worker_id}", lambda: self._drain(worker))
        return self._view(worker)

    def get(self, worker_id: int) -> WorkerView:
        """Raises UnknownWorker."""
        return self._view(self._known(worker_id))

    def find(self, url: str) -> WorkerView:
        """The worker of a URL, in any spelling of it; a draining one only if none replaced it.

        Raises UnknownWorker, AddressRefused.
        """
        address = parse_worker_url(url)
        found = self._by_url.get(address.url)
        if found is None:
            same = [worker for worker in self._workers.values() if worker.address.url == address.url]
            if not same:
                raise UnknownWorker(address.url)
            found = same[-1]
        return self._view(found)

    def take_report(self, worker_id: int, report: WorkerReport) -> WorkerView:
        """A shim tells of its engine. Raises AddressRefused, WorkerTakenOut, and UnknownWorker, also for the
        id of another worker.

        Its load is the worker's load. What looks like a change of life (an engine that is dead, or another
        one than before) is not believed but probed at once: the probe decides.
        """
        url = parse_worker_url(report.url or self._known(worker_id).address.url).url
        if url in self.taken_out:
            raise WorkerTakenOut(url)
        if (worker := self._known(worker_id)).address.url != url:
            raise UnknownWorker(url)
        before, worker.report = worker.report, report
        worker.reported_at = time.monotonic()
        another = before is not None and before.instance != report.instance
        gone = report.engine == "dead" and worker.state in SERVING
        back = report.engine == "ready" and worker.state not in SERVING
        if another or gone or back:
            worker.wake.set()
            return self._view(worker)
        if worker.state in SERVING:
            self._learn_weights(worker, report.weight_version)
        if worker.state in SERVING and None not in (report.running, report.waiting, report.kv_used):
            self.loaded(worker, LoadSample(report.running or 0, report.waiting or 0, report.kv_used or 0))
        return self._view(worker)

    def list(self) -> list[WorkerView]:
        """All workers that are not removed, by id."""
        return [self._view(worker) for worker in self._workers.values()]

    def registered(self) -> tuple[tuple[int, WorkerSpec, WorkerState], ...]:
        """Id, what was said of it under its canonical URL, and state of every worker that is to stay."""
        return tuple(
            (worker.worker_id, replace(worker.spec, url=url), worker.state)
            for url, worker in self._by_url.items()
        )

    def facts(self, worker_id: int) -> WorkerFacts | None:
        worker = self._workers.get(worker_id)
        return worker.facts if worker is not None else None

    def active(self) -> int:
        """How many workers take new steps."""
        return sum(worker.state in TAKING for worker in self._workers.values())

    def load(self, worker_id: int) -> LoadSample | None:
        worker = self._workers.get(worker_id)
        return worker.load if worker is not None else None

    def stats(self) -> dict[str, int]:
        """Counts for /metrics: workers by state, and restarts of background tasks."""
        counts = {f"workers_{state}": 0 for state in WorkerState if state is not WorkerState.REMOVED}
        for worker in self._workers.values():
            counts[f"workers_{worker.state}"] += 1
        return counts | {"task_restarts": self._supervisor.restarts}

    async def changed(self) -> None:
        """Returns at the next change of any worker's state."""
        await self._change.wait()

    async def close(self) -> None:
        await self._supervisor.close()
        await self._client.aclose()

    # ------------------------------------------------------------------ what the background tasks report

    @property
    def tuning(self) -> FleetTuning:
        return self._tuning

    def asking(self, worker: Worker, timeout_s: float) -> Asking:
        return Asking(self._client, worker.address.url, worker.spec.api_key, timeout_s)

    def endpoints(self) -> tuple[WorkerEndpoint, ...]:
        """Every worker the byte path may talk to now, draining ones too."""
        return tuple(self._endpoints.values())

    def asking_endpoint(self, endpoint: WorkerEndpoint, timeout_s: float) -> Asking:
        return Asking(self._client, endpoint.base_url, endpoint.api_key, timeout_s)

    def take(self, worker: Worker, found: Description) -> None:
        facts = facts_of(found, worker.spec, worker.address, worker.worker_id, worker.generation + 1)
        stranger = self.served.stranger(worker, facts.models)
        if stranger is not None and self._tuning.one_model:
            self._keep_aside(worker, facts, stranger)
            return
        if stranger is not None:
            log.warning("worker %s is taken although %s", facts.name, stranger)
        self._move(worker, WorkerState.ACTIVE)
        worker.generation = facts.generation
        worker.facts = facts
        worker.names.started(facts.models)
        worker.vitals = found.vitals
        worker.ledger = self._new_ledger()
        worker.activation_failures = 0
        worker.last_error = None
        self._endpoints[worker.worker_id] = endpoint_of(worker, facts)
        log.info(
            "worker %s is active: %s, degree %d, generation %d",
            facts.name,
            facts.kind,
            facts.degree,
            facts.generation,
        )
        if facts.features.loads:
            generation = worker.generation
            self._supervisor.start(
                f"loads:{worker.worker_id}:{generation}", lambda: poll_loads(self, worker, generation)
            )
        self._listener.worker_up(facts)

    def settle(self, worker: Worker, state: WorkerState) -> None:
        if worker.state is not state:
            self._move(worker, state)

    def seen(self, worker: Worker, vitals: Vitals) -> None:
        worker.vitals = replace(vitals, life={**worker.vitals.life, **vitals.life})
        self._learn_models(worker, vitals.models)
        self._learn_weights(worker, vitals.weight_version)

    def lost(self, worker: Worker, why: str) -> None:
        log.warning("worker %s is down: %s", worker.name, why)
        worker.last_error = why
        worker.load = None
        self._endpoints.pop(worker.worker_id, None)
        if worker.state is WorkerState.DRAINING:
            self._listener.worker_down(worker.worker_id, worker.generation)
            self.remove(worker)
            return
        self._move(worker, WorkerState.DOWN)
        self._listener.worker_down(worker.worker_id, worker.generation)

    def loaded(self, worker: Worker, sample: LoadSample) -> None:
        worker.load = sample
        worker.load_at = time.monotonic()
        self._listener.load_report(
            worker.worker_id,
            worker.generation,
            running=sample.running,
            waiting=sample.waiting,
            kv_used=sample.kv_used,
        )

    def remove(self, worker: Worker) -> None:
        self._move(worker, WorkerState.REMOVED)
        self._endpoints.pop(worker.worker_id, None)
        self._workers.pop(worker.worker_id, None)
        self._forget_url(worker)
        worker.wake.set()  # its watch ends now, not at the next probe
        self._look_aside()
        if worker.generation:
            self._listener.worker_removed(worker.worker_id, worker.generation)

    def _keep_aside(self, worker: Worker, facts: WorkerFacts, why: str) -> None:
        if worker.last_error != why:
            log.warning("worker %s is kept aside: %s", worker.name, why)
        worker.last_error = why
        worker.facts = facts
        worker.names.clear()  # What it was once says no more which model the fleet serves.
        self.settle(worker, WorkerState.ASIDE)

    def _look_aside(self) -> None:
        """Who said which model the fleet serves may be gone."""
        for worker in self._workers.values():
            if worker.state is WorkerState.ASIDE:
                worker.wake.set()

    async def _ask_models(self, worker: Worker) -> bool:
        if worker.spec.model:
            return True  # It goes by that, whatever it lists.
        generation = worker.generation
        try:
            listed = await listed_models(self.asking(worker, self._tuning.load_timeout_s))
        except AskFailed:
            return False
        if worker.generation == generation and worker.state in SERVING:
            self._learn_models(worker, listed)
        return bool(listed)

    def _learn_models(self, worker: Worker, listed: tuple[str, ...]) -> None:
        """Adapters come and go, and new weights may bring a new name."""
        if worker.facts is None or not listed or worker.spec.model or listed == worker.facts.models:
            return
        worker.facts = replace(worker.facts, models=listed)
        worker.names.note(listed)

    def _learn_weights(self, worker: Worker, version: str | None) -> None:
        """New weights in a running engine: its steps go on, so the generation stays."""
        if worker.facts is not None and version is not None and version != worker.facts.weight_version:
            worker.facts = replace(worker.facts, weight_version=version)
            self._listener.weights_updated(worker.worker_id, worker.generation, version)

    def _learn(self, worker: Worker, said: WorkerSpec) -> None:
        """A worker that was known before its shim came, or with another key."""
        if (spec := worker.spec.told(said)) == worker.spec:
            return
        worker.spec = spec
        worker.wake.set()
        if worker.facts is not None and worker.state in SERVING:
            worker.facts = replace(worker.facts, shim_url=spec.shim_url, shim_key=spec.api_key)
            self._endpoints[worker.worker_id] = endpoint_of(worker, worker.facts)
            self._listener.worker_up(worker.facts)

    async def _drain(self, worker: Worker) -> None:
        while worker.state is WorkerState.DRAINING and self._live_steps(worker.worker_id) > 0:
            if time.monotonic() >= worker.drain_deadline:
                self.lost(worker, f"not drained within {self._tuning.drain_timeout_s:g} s")
                return
            await asyncio.sleep(self._tuning.drain_poll_s)
        if worker.state is WorkerState.DRAINING:
            self.remove(worker)

    def _new_ledger(self) -> HealthLedger:
        return HealthLedger(self._tuning.failures_before_down, self._tuning.busy_limit_s)

    def _known(self, worker_id: int) -> Worker:
        worker = self._workers.get(worker_id)
        if worker is None:
            raise UnknownWorker(worker_id)
        return worker

    def _view(self, worker: Worker) -> WorkerView:
        return view_of(worker, time.monotonic())

    def _move(self, worker: Worker, state: WorkerState) -> None:
        worker.move(state, time.monotonic())
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _forget_url(self, worker: Worker) -> None:
        if self._by_url.get(worker.address.url) is worker:
            del self._by_url[worker.address.url]
