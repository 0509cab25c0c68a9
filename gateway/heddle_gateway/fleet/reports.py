"""What the background tasks need of the fleet: to ask a worker, and to report what they found."""

from typing import Protocol

from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.engines.description import Description, LoadSample, Vitals
from heddle_gateway.fleet.state import WorkerState
from heddle_gateway.fleet.tuning import FleetTuning
from heddle_gateway.fleet.worker import Worker


class FleetReports(Protocol):
    """Implemented by registry.Fleet, which alone changes a worker's state."""

    @property
    def tuning(self) -> FleetTuning: ...

    def asking(self, worker: Worker, timeout_s: float) -> Asking: ...

    def take(self, worker: Worker, found: Description) -> None:
        """The worker answered who it is: a new generation begins, or it is kept aside."""

    def settle(self, worker: Worker, state: WorkerState) -> None:
        """A move nobody outside is told of: between active and suspect, between those that wait."""

    def seen(self, worker: Worker, vitals: Vitals) -> None:
        """A probe was answered by the life that is known."""

    def lost(self, worker: Worker, why: str) -> None:
        """What runs there is gone. A draining worker is removed, another is asked until it is back."""

    def loaded(self, worker: Worker, sample: LoadSample) -> None:
        """A fresh report of the current life."""
