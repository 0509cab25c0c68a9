"""Who hears of the fleet's changes, and in which order. Part of the composition."""

from collections.abc import Callable

from heddle_gateway.fleet.events import WorkerFacts
from heddle_gateway.live.driver import Driver
from heddle_gateway.moving import MovingKv


class WorkerEvents:
    """The fleet's listener: worker events go to the core, a removed worker's series go from the metrics."""

    def __init__(self, driver: Driver) -> None:
        self._core = driver.workers
        self._names: dict[int, str] = {}
        self.on_removed: Callable[[str], None] = lambda name: None
        self.on_changed: Callable[[], None] = lambda: None
        self.load_report = driver.workers.load_report
        self.moving: MovingKv | None = None
        self.before_change: Callable[[], None] = lambda: None

    def worker_up(self, facts: WorkerFacts) -> None:
        self.before_change()
        self._names[facts.worker_id] = facts.name
        self._core.up(facts)
        if self.moving is not None:
            self.moving.worker_up(facts)
        self.on_changed()

    def worker_draining(self, worker_id: int, generation: int) -> None:
        self.before_change()
        self._core.draining(worker_id, generation)
        self.on_changed()

    def weights_updated(self, worker_id: int, generation: int, weight_version: str) -> None:
        self._core.weights_updated(worker_id, generation, weight_version)
        if self.moving is not None:
            self.moving.weights_updated(worker_id)

    def worker_down(self, worker_id: int, generation: int) -> None:
        self.before_change()
        self._core.down(worker_id, generation)
        if self.moving is not None:
            self.moving.worker_gone(worker_id)
        self.on_changed()

    def worker_removed(self, worker_id: int, generation: int) -> None:
        self.before_change()
        self._core.removed(worker_id, generation)
        if self.moving is not None:
            self.moving.worker_gone(worker_id)
        self.on_changed()
        name = self._names.pop(worker_id, None)
        if name is not None:
            self.on_removed(name)

    def name(self, worker_id: int) -> str | None:
        """Of a worker that is or was active and is not removed."""
        return self._names.get(worker_id)
