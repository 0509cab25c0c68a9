"""Prometheus metrics of the gateway.

A step updates plain numbers (one event loop, no locks: prometheus_client's own counters cost a tenth of a
whole step), all that is counted of it under one key; a collector turns them into metric families when
somebody scrapes.

Invariants: no label comes from a client except through a bounded table (a model that the fleet does not list
is "other"; trajectory ids never); what can be derived from live sets is read at the scrape, not counted
beside them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from heddle_contracts.steps import Outcome
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

LATENCY_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
HOLD_BUCKETS: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0)
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


class Distribution:
    """A histogram of plain numbers. ``bounds``: upper ends of the buckets, ascending; seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets as Prometheus wants them, and the sum."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found, self._sum


@dataclass(slots=True)
class _Counts:
    """What is counted of the steps under one key. ``seconds``: shared by all of a dialect."""

    seconds: Distribution
    steps: int = 0
    attempts: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0

    def add(self, other: "_Counts") -> None:
        self.steps += other.steps
        self.attempts += other.attempts
        self.prompt += other.prompt
        self.cached += other.cached
        self.output += other.output


# Dialect, outcome, rule, model's label, last worker.
_Key = tuple[str, Outcome, str, str, str | None]


class Metrics(Collector):
    """``known_models``: the models the fleet lists now. ``sources``: name of a part to a function that reads
    its counts at the scrape; names that end in ``_total`` are counters.
    """

    def __init__(
        self,
        known_models: Callable[[], Iterable[str]],
        sources: Mapping[str, Callable[[], Mapping[str, float]]],
    ) -> None:
        self._known_models = known_models
        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._series: dict[_Key, _Counts] = {}
        self._refused: dict[str, int] = {}
        self._models: dict[str | None, str] = {}
        self._seconds: dict[str, Distribution] = {}
        self._first_byte = Distribution(LATENCY_BUCKETS)
        self._held = Distribution(HOLD_BUCKETS)

    def step_ended(self, step: Step) -> None:
        """One ended step."""
        name = step.model
        model = self._models.get(name) or self._label_of(name)
        # The outcome itself and not its value: reading a value of an enum costs as much as half of this.
        key = (step.dialect, step.outcome, step.source, model, step.worker)
        counts = self._series.get(key)
        if counts is None:
            seconds = self._seconds.setdefault(step.dialect, Distribution(LATENCY_BUCKETS))
            counts = self._series[key] = _Counts(seconds)
        counts.steps += 1
        counts.attempts += step.attempts
        counts.prompt += step.prompt_tokens
        counts.cached += step.cached_tokens
        counts.output += step.output_tokens
        arrived_at = step.arrived_at
        counts.seconds.observe(step.ended_at - arrived_at)
        first_byte_at = step.first_byte_at
        if first_byte_at is not None:
            self._first_byte.observe(first_byte_at - arrived_at)
        dispatched_at = step.dispatched_at
        if dispatched_at is not None:
            self._held.observe(dispatched_at - arrived_at)

    def refused(self, status: int) -> None:
        """A request that was not understood (400, 413, ...); it has no step."""
        self._refused[str(status)] = self._refused.get(str(status), 0) + 1

    def forget_worker(self, worker: str) -> None:
        """A removed worker's series go, or churn would grow them for ever. The others keep what it did."""
        for key in [key for key in self._series if key[-1] == worker]:
            counts = self._series.pop(key)
            self._series.setdefault((*key[:-1], None), _Counts(counts.seconds)).add(counts)

    def exposition(self) -> tuple[bytes, str]:
        """(text, content type) for a scrape."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterable[Metric]:
        steps: Counter[tuple[str, ...]] = Counter()
        worker_steps: Counter[tuple[str, ...]] = Counter()
        whole = _Counts(Distribution(()))
        for (dialect, outcome, source, model, worker), counts in self._series.items():
            steps[dialect, outcome.value, source, model] += counts.steps
            if worker is not None:
                worker_steps[worker, outcome.value] += counts.steps
            whole.add(counts)
        labels = ["dialect", "outcome", "rule", "model"]
        yield _counter("heddle_steps", "Ended steps", labels, steps)
        labels = ["worker", "outcome"]
        yield _counter("heddle_worker_steps", "Ended steps by the last worker", labels, worker_steps)
        refused: dict[tuple[str, ...], int] = {(status,): count for status, count in self._refused.items()}
        yield _counter("heddle_refused_requests", "Requests that became no step", ["status"], refused)
        for name, text, value in (
            ("heddle_attempts", "Dispatches to workers", whole.attempts),
            ("heddle_prompt_tokens", "Prompt tokens of ended steps", whole.prompt),
            ("heddle_cached_prompt_tokens", "Of these, tokens that lay in a KV cache", whole.cached),
            ("heddle_output_tokens", "Output tokens of ended steps", whole.output),
        ):
            yield CounterMetricFamily(name, text, value=value)
        seconds = HistogramMetricFamily("heddle_step_seconds", "Arrival to end", labels=["dialect"])
        for dialect, distribution in self._seconds.items():
            seconds.add_metric([dialect], *distribution.buckets())
        yield seconds
        for name, text, distribution in (
            ("heddle_first_byte_seconds", "Arrival to the first byte of the answer", self._first_byte),
            ("heddle_hold_seconds", "Arrival to the last dispatch", self._held),
        ):
            buckets, total = distribution.buckets()
            yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)
        yield from self._derived()

    def _derived(self) -> Iterable[Metric]:
        for part, read in self._sources.items():
            for name, value in read().items():
                text = f"{name.removesuffix('_total').replace('_', ' ')} ({part})"
                if name.endswith("_total"):
                    yield CounterMetricFamily(f"heddle_{part}_{name}", text, value=value)
                else:
                    yield GaugeMetricFamily(f"heddle_{part}_{name}", text, value=value)

    def _label_of(self, model: str | None) -> str:
        """Unknown names are not remembered: they come from clients."""
        if model is None or len(self._models) >= MAX_MODELS or model not in set(self._known_models()):
            return OTHER
        self._models[model] = model
        return model


def _counter(
    name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
