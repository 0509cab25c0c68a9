"""The types that cross the fleet's boundary: what is asked of it, what it tells, what the byte path gets.

Invariants: a worker's id is never used twice in one process; ``generation`` starts at 1 and grows by one each
time the server behind the URL is another one (it came back, or was found restarted); the pair names one life
of one engine, so a late message about an old life can be told apart.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, Self

from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense

MOST_COUNTED: Final = 2**31 - 1
"""GPUs, and requests at once, of a worker: the core has 32 bits for each."""
MOST_KV_TOKENS: Final = 2**53

FailureKind = Literal["unreachable", "overloaded", "worker_error"]
"""As the decision core names a failed attempt (heddle_core.FailureKind)."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What somebody says about a worker. Everything but the URL is found by asking; a value here overrides.

    ``degree`` is the MP degree in GPUs, ``slots`` the requests that run at once, ``kv_tokens`` the KV pool in
    tokens (0: unknown, taken as unlimited). ``name`` is what answers show in ``X-Heddle-Worker``; host:port
    where it is not given.
    """

    url: str
    name: str | None = None
    kind: EngineKind | None = None
    model: str | None = None
    degree: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    priority: PrioritySense | None = None
    api_key: str | None = field(default=None, repr=False)
    shim_url: str | None = None
    """Of the shim that moves its KV; no trailing slash."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field. Name and key travel in headers, so no control characters."""
        for name, value, longest in (("name", self.name, 128), ("api_key", self.api_key, 4096)):
            if value is not None and not (
                0 < len(value) <= longest
                and value.isascii()
                and value.isprintable()
                and value == value.strip()
            ):
                raise ValueError(f"{name}: give 1 to {longest} printable ASCII characters")
        for name, number, least, most in (
            ("degree", self.degree, 1, MOST_COUNTED),
            ("slots", self.slots, 1, MOST_COUNTED),
            ("kv_tokens", self.kv_tokens, 0, MOST_KV_TOKENS),
        ):
            if number is not None and not least <= number <= most:
                raise ValueError(f"{name}: {number} is not between {least} and {most}")

    def told(self, again: Self) -> Self:
        """This one where the same URL was added again: shim and key are as they were said last."""
        return replace(self, shim_url=again.shim_url or self.shim_url, api_key=again.api_key or self.api_key)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What is known of a worker at the moment it becomes active. Units as in ``WorkerSpec``."""

    worker_id: int
    generation: int
    name: str
    url: str
    kind: EngineKind
    features: Features
    models: tuple[str, ...]
    degree: int
    slots: int
    kv_tokens: int
    context_length: int | None = None
    emulated: bool = False
    version: str | None = None
    weight_version: str | None = None
    page_size: int | None = None
    preemption_threshold: int | None = None
    data_parallel: int = 1
    pipeline_parallel: int = 1
    shim_url: str | None = None
    shim_key: str | None = field(default=None, repr=False)

    @property
    def has_priority(self) -> bool:
        return self.features.priority is not PrioritySense.NONE


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """What the byte path needs to send one request to one life of a worker.

    ``base_url`` has no trailing slash and no ``/v1``; append the request's path.
    """

    worker_id: int
    generation: int
    name: str
    base_url: str
    kind: EngineKind
    features: Features
    api_key: str | None = field(default=None, repr=False)


class FleetListener(Protocol):
    """Told of every change, in order, in the event loop's thread. Calls must not block or raise.

    ``worker_up`` comes with each new generation, after ``worker_down`` of the last one. ``worker_down``
    means: what runs there is lost. ``worker_removed`` is the last word about an id. A worker that never
    became active is never mentioned.
    """

    def worker_up(self, facts: WorkerFacts) -> None: ...
    def worker_draining(self, worker_id: int, generation: int) -> None: ...
    def worker_down(self, worker_id: int, generation: int) -> None: ...
    def worker_removed(self, worker_id: int, generation: int) -> None: ...
    def weights_updated(self, worker_id: int, generation: int, weight_version: str) -> None:
        """The engine runs other weights from now on; its KV is void."""

    def load_report(
        self, worker_id: int, generation: int, *, running: int, waiting: int, kv_used: int
    ) -> None:
        """``running`` and ``waiting`` in requests, ``kv_used`` in tokens. Only fresh reports come."""
