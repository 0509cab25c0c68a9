"""Prometheus metrics of the gateway.

Invariants: no label comes from a client except through a bounded table (a model the fleet does not list is
"other"; trajectory ids never); what can be derived from live sets is computed at the scrape, not counted beside them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heddle_contracts.steps import Outcome

_LATENCY_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
_HOLD_BUCKETS: Final = (0.001, 0.01, 0.1, 1, 10, 30, 60, 120, 300)
# More models than this in one fleet are shown as "other" too.
MAX_MODELS: Final = 64
OTHER: Final = "other"


class Step(Protocol):
    """What is read of an ended step (accounting.ended_step.EndedStep)."""

    @property
    def dialect(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def source(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def worker(self) -> str | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def arrived_at(self) -> float: ...
    @property
    def dispatched_at(self) -> float | None: ...
    @property
    def first_byte_at(self) -> float | None: ...
    @property
    def ended_at(self) -> float: ...


class _AtScrape(Collector):
    """Gauges that are read where they live, when somebody asks."""

    def __init__(self, sources: Mapping[str, Callable[[], Mapping[str, float]]]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        for prefix, read in self._sources.items():
            for name, value in read().items():
                yield GaugeMetricFamily(
                    f"heddle_{prefix}_{name}", f"{name.replace('_', ' ')} ({prefix})", value=value
                )


class Metrics:
    """One registry per gateway. ``known_models``: the models the fleet lists now.

    ``sources``: name of a part to a function that reads its counts, for the scrape.
    """

    def __init__(
        self,
        known_models: Callable[[], Iterable[str]],
        sources: Mapping[str, Callable[[], Mapping[str, float]]],
    ) -> None:
        self._known_models = known_models
        self._registry = registry = CollectorRegistry()
        self._steps = Counter(
            "heddle_steps", "Ended steps", ["dialect", "outcome", "rule", "model"], registry=registry
        )
        self._worker_steps = Counter(
            "heddle_worker_steps", "Ended steps by worker", ["worker", "outcome"], registry=registry
        )
        self._attempts = Counter("heddle_attempts", "Dispatches to workers", registry=registry)
        self._prompt = Counter("heddle_prompt_tokens", "Prompt tokens of ended steps", registry=registry)
        self._cached = Counter(
            "heddle_cached_prompt_tokens", "Prompt tokens that lay in a KV cache", registry=registry
        )
        self._output = Counter("heddle_output_tokens", "Output tokens of ended steps", registry=registry)
        self._seconds = Histogram(
            "heddle_step_seconds",
            "Arrival to end",
            ["dialect"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._first_byte = Histogram(
            "heddle_first_byte_seconds", "Arrival to the first byte", buckets=_LATENCY_BUCKETS, registry=registry
        )
        self._held = Histogram(
            "heddle_hold_seconds", "Arrival to dispatch", buckets=_HOLD_BUCKETS, registry=registry
        )
        registry.register(_AtScrape(sources))
        self._bound_steps: dict[tuple[str, Outcome, str, str | None], Counter] = {}
        self._bound_workers: dict[tuple[str, Outcome], Counter] = {}
        self._bound_seconds: dict[str, Histogram] = {}
        self._models: set[str] = set()
        self._refused = Counter(
            "heddle_refused_requests", "Requests that never became a step", ["status"], registry=registry
        )

    def step_ended(self, step: Step) -> None:
        """One ended step. Children are looked up once per combination of labels, then bound."""
        outcome = step.outcome
        key = (step.dialect, outcome, step.source, step.model)
        counter = self._bound_steps.get(key)
        if counter is None:
            counter = self._bind_step(key)
        counter.inc()
        if step.worker is not None:
            worker_key = (step.worker, outcome)
            worker = self._bound_workers.get(worker_key)
            if worker is None:
                worker = self._bound_workers[worker_key] = self._worker_steps.labels(step.worker, outcome.value)
            worker.inc()
        seconds = self._bound_seconds.get(step.dialect)
        if seconds is None:
            seconds = self._bound_seconds[step.dialect] = self._seconds.labels(step.dialect)
        seconds.observe(step.ended_at - step.arrived_at)
        if step.first_byte_at is not None:
            self._first_byte.observe(step.first_byte_at - step.arrived_at)
        if step.dispatched_at is not None:
            self._held.observe(step.dispatched_at - step.arrived_at)
        self._attempts.inc(step.attempts)
        self._prompt.inc(step.prompt_tokens)
        self._cached.inc(step.cached_tokens)
        self._output.inc(step.output_tokens)

    def refused(self, status: int) -> None:
        """A request that was not understood (400, 413, ...); it has no step."""
        self._refused.labels(str(status)).inc()

    def forget_worker(self, worker: str) -> None:
        """A removed worker's series go, or churn would grow them for ever."""
        for key in [key for key in self._bound_workers if key[0] == worker]:
            del self._bound_workers[key]
            self._worker_steps.remove(worker, key[1].value)

    def exposition(self) -> tuple[bytes, str]:
        """(text, content type) for a scrape."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _bind_step(self, key: tuple[str, Outcome, str, str | None]) -> Counter:
        dialect, outcome, source, model = key
        label = OTHER
        if model is not None and (model in self._models or model in set(self._known_models())):
            if model in self._models or len(self._models) < MAX_MODELS:
                self._models.add(model)
                label = model
        counter = self._steps.labels(dialect, outcome.value, source, label)
        if label != OTHER:
            # Unknown names are not remembered: they come from clients.
            self._bound_steps[key] = counter
        return counter
