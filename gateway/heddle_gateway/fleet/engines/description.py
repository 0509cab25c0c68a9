"""What an engine family must be able to tell about one of its servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.features import EngineKind, Features

DEFAULT_SLOTS = 64
"""Requests at once where a server does not say: enough to batch, few enough that the queue stays in the
gateway.
"""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a cheap probe brings. ``life`` holds marks that differ between two starts of the server;
    ``models`` what it lists now, empty where that is not known.
    """

    life: Mapping[str, str] = field(default_factory=dict)
    weight_version: str | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """A server as it describes itself. Units as in ``events.WorkerFacts``."""

    kind: EngineKind
    features: Features
    models: tuple[str, ...]
    vitals: Vitals
    degree: int = 1
    slots: int = DEFAULT_SLOTS
    kv_tokens: int = 0
    context_length: int | None = None
    version: str | None = None
    emulated: bool = False
    page_size: int | None = None
    preemption_threshold: int | None = None
    data_parallel: int = 1
    pipeline_parallel: int = 1
    shim_url: str | None = None


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One look at a worker's load. ``kv_used`` in tokens; ``ranks`` is what it said, one entry a DP rank."""

    running: int
    waiting: int
    kv_used: int
    ranks: tuple[dict[str, Any], ...] = ()


class Engine(Protocol):
    """One family of servers. Every method raises AskFailed where a question got no usable answer."""

    kind: EngineKind

    async def describe(self, ask: Asking) -> Description | None:
        """None where the server is of another family. StillStarting where it is not ready."""

    async def check(self, ask: Asking) -> Vitals:
        """The periodic probe: cheap, and answered by a server that is merely busy or paused."""

    async def load(self, ask: Asking, kv_tokens: int) -> LoadSample:
        """Only called where ``features.loads`` was seen. ``kv_tokens``: the pool's size, 0 if unknown."""


def same_life(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two sets of marks can be of one start. A mark that one side lacks decides nothing."""
    return all(now[key] == value for key, value in before.items() if key in now)


def whole_number(value: Any, default: int) -> int:
    """``value`` as a count, or ``default`` where it is absent or no positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 1:
        return default
    return int(min(value, 2**53))


def text_or_none(value: Any) -> str | None:
    return value[:256] if isinstance(value, str) and value else None
