"""One worker as the fleet holds it, and the frozen view of it that others see."""

import asyncio
from dataclasses import dataclass, field

from heddle_contracts.shim import WorkerReport

from heddle_gateway.fleet.address import WorkerAddress
from heddle_gateway.fleet.engines.description import LoadSample, Vitals
from heddle_gateway.fleet.events import WorkerEndpoint, WorkerFacts, WorkerSpec
from heddle_gateway.fleet.features import EngineKind, Features
from heddle_gateway.fleet.health import HealthLedger
from heddle_gateway.fleet.served_models import ModelNames
from heddle_gateway.fleet.state import WorkerState, check_move


@dataclass(slots=True)
class Worker:
    """Changed by the Fleet only. ``generation`` is 0 until it was active once."""

    worker_id: int
    spec: WorkerSpec
    address: WorkerAddress
    ledger: HealthLedger
    state_since: float
    state: WorkerState = WorkerState.PROBING
    generation: int = 0
    facts: WorkerFacts | None = None
    names: ModelNames = field(default_factory=ModelNames)
    vitals: Vitals = field(default_factory=Vitals)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    load: LoadSample | None = None
    load_at: float = 0.0
    report: WorkerReport | None = None
    reported_at: float = float("-inf")
    drain_deadline: float = 0.0
    activation_failures: int = 0
    probe_failures: int = 0
    busy_probes: int = 0
    stale_loads: int = 0
    passive_failures: int = 0
    last_error: str | None = None

    def move(self, target: WorkerState, now: float) -> None:
        check_move(self.state, target)
        self.state = target
        self.state_since = now

    @property
    def name(self) -> str:
        return self.spec.name or self.address.host_port


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker at one moment, for people and the admin API. Fields of an engine are None until it was
    reached.
    """

    worker_id: int
    name: str
    url: str
    state: WorkerState
    state_for_s: float
    generation: int
    kind: EngineKind | None
    version: str | None
    emulated: bool
    models: tuple[str, ...]
    degree: int | None
    slots: int | None
    kv_tokens: int | None
    features: Features | None
    weight_version: str | None
    shim_url: str | None
    running: int | None
    waiting: int | None
    kv_used: int | None
    load_age_s: float | None
    report: WorkerReport | None
    report_age_s: float | None
    probe_failures: int
    busy_probes: int
    stale_loads: int
    passive_failures: int
    last_error: str | None


def endpoint_of(worker: Worker, facts: WorkerFacts) -> WorkerEndpoint:
    return WorkerEndpoint(
        worker_id=worker.worker_id,
        generation=worker.generation,
        name=facts.name,
        base_url=worker.address.url,
        kind=facts.kind,
        features=facts.features,
        api_key=worker.spec.api_key,
    )


def view_of(worker: Worker, now: float) -> WorkerView:
    facts, load = worker.facts, worker.load
    return WorkerView(
        worker_id=worker.worker_id,
        name=worker.name,
        url=worker.address.url,
        state=worker.state,
        state_for_s=now - worker.state_since,
        generation=worker.generation,
        kind=facts.kind if facts else worker.spec.kind,
        version=facts.version if facts else None,
        emulated=facts.emulated if facts else False,
        models=facts.models if facts else (),
        degree=facts.degree if facts else worker.spec.degree,
        slots=facts.slots if facts else worker.spec.slots,
        kv_tokens=facts.kv_tokens if facts else worker.spec.kv_tokens,
        features=facts.features if facts else None,
        weight_version=facts.weight_version if facts else None,
        shim_url=facts.shim_url if facts else worker.spec.shim_url,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        kv_used=load.kv_used if load else None,
        load_age_s=now - worker.load_at if load else None,
        report=worker.report,
        report_age_s=now - worker.reported_at if worker.report else None,
        probe_failures=worker.probe_failures,
        busy_probes=worker.busy_probes,
        stale_loads=worker.stale_loads,
        passive_failures=worker.passive_failures,
        last_error=worker.last_error,
    )
