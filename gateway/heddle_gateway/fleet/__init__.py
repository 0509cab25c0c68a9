"""The workers: registry, probing, health, loads.

Use: ``fleet = Fleet(listener, live_steps)``; ``await fleet.add(WorkerSpec(url))``; the listener
(events.FleetListener) is told what comes and goes. Byte path: ``fleet.worker(id, generation)``,
``note_success``, ``note_failure``: plain look-ups, no await.
"""

from heddle_gateway.fleet.errors import AddressRefused, FleetError, FleetFull, UnknownWorker
from heddle_gateway.fleet.events import FailureKind, FleetListener, WorkerEndpoint, WorkerFacts, WorkerSpec
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.fleet.state import WorkerState
from heddle_gateway.fleet.tuning import FleetTuning
from heddle_gateway.fleet.worker import WorkerView

__all__ = [
    "AddressRefused",
    "EngineKind",
    "FailureKind",
    "Features",
    "Fleet",
    "FleetError",
    "FleetFull",
    "FleetListener",
    "FleetTuning",
    "PrioritySense",
    "UnknownWorker",
    "WorkerEndpoint",
    "WorkerFacts",
    "WorkerSpec",
    "WorkerState",
    "WorkerView",
]
