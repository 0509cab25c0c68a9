"""What the core is told of workers: the fleet's events, in the core's words.

Invariant: what is found out of a worker late (its link, its weights) is told only while that generation of it
takes steps, so that it cannot bring back one that has left.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from heddle_core import Core

if TYPE_CHECKING:
    from heddle_core import Action

Tell = Callable[[Callable[[Core, int], "Iterable[Action]"]], None]
"""Calls the core, with the time, and carries out what it wants done."""


class WorkerFacts(Protocol):
    """What the core needs to know of a worker (fleet.events.WorkerFacts)."""

    @property
    def worker_id(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def degree(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def has_priority(self) -> bool: ...
    @property
    def weight_version(self) -> str | None: ...


class CoreWorkers:
    """Part of the driver."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._ids: dict[str, int] = {}
        self._facts: dict[int, WorkerFacts] = {}
        self._weights: dict[str | None, int] = {}

    def id_of(self, name: str) -> int | None:
        return self._ids.get(name)

    def tell_again(self) -> None:
        """To a core that knows nothing yet: all that take steps. Their links are not known to it."""
        for facts in list(self._facts.values()):
            self._tell_of(facts, facts.weight_version)

    def up(self, facts: WorkerFacts) -> None:
        self._ids[facts.name] = facts.worker_id
        self._facts[facts.worker_id] = facts
        self._tell_of(facts, facts.weight_version)

    def linked(
        self, worker_id: int, generation: int, tokens_per_s: float, setup_us: int, weight_version: str | None
    ) -> None:
        """A worker that is up can move KV: so many tokens a second, and so long for a transfer of none."""
        facts = self._facts.get(worker_id)
        if facts is not None and facts.generation == generation:
            self._tell_of(facts, weight_version, tokens_per_s, setup_us)

    def weights_updated(self, worker_id: int, generation: int, weight_version: str) -> None:
        """The KV there is void, and so is what its shim said; it has no link until it is asked again."""
        number = self._number_of_weights(weight_version)
        self._tell(lambda core, now: core.weights_updated(now, worker_id, generation, number))
        facts = self._facts.get(worker_id)
        if facts is not None and facts.generation == generation:
            self._tell_of(facts, weight_version)

    def draining(self, worker_id: int, generation: int) -> None:
        self._facts.pop(worker_id, None)
        self._tell(lambda core, now: core.worker_draining(now, worker_id, generation))

    def down(self, worker_id: int, generation: int) -> None:
        self._facts.pop(worker_id, None)
        self._tell(lambda core, now: core.worker_down(now, worker_id, generation))

    def removed(self, worker_id: int, generation: int) -> None:
        self._facts.pop(worker_id, None)
        self._ids = {name: known for name, known in self._ids.items() if known != worker_id}
        self._tell(lambda core, now: core.worker_removed(now, worker_id, generation))

    def load_report(
        self, worker_id: int, generation: int, *, running: int, waiting: int, kv_used: int
    ) -> None:
        """``running`` and ``waiting`` in requests, ``kv_used`` in tokens."""
        self._tell(
            lambda core, now: core.load_report(
                now, worker_id, generation, running=running, waiting=waiting, kv_used=kv_used
            )
        )

    def _tell_of(
        self,
        facts: WorkerFacts,
        weight_version: str | None,
        tokens_per_s: float | None = None,
        setup_us: int = 0,
    ) -> None:
        self._tell(
            lambda core, now: core.worker_up(
                now,
                facts.worker_id,
                facts.generation,
                degree=facts.degree,
                slots=facts.slots,
                kv_tokens=facts.kv_tokens,
                has_priority=facts.has_priority,
                transfer_tokens_per_s=tokens_per_s,
                transfer_setup_us=setup_us,
                weights=self._number_of_weights(weight_version),
            )
        )

    def _number_of_weights(self, version: str | None) -> int:
        return self._weights.setdefault(version, len(self._weights))
