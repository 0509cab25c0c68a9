"""What a shim tells the gateway about its engine, made from ``/v1/loads`` and two looks at ``/metrics``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from heddle_contracts.shim import WorkerReport

from heddle_shim.engine_watch import EngineWatch

PROMPT: Final = "sglang:prompt_tokens_total"
CACHED: Final = "sglang:cached_tokens_total"
OUTPUT: Final = "sglang:generation_tokens_total"
RETRACTED: Final = "sglang:num_retracted_requests_total"


@dataclass(slots=True)
class Telemetry:
    """Remembers the last look at the engine's counters. Reports come more often than such looks: each tells
    of the time between the last two.
    """

    instance: str
    _counters: Mapping[str, float] = field(default_factory=dict)
    _at: float = 0.0
    _hit_rate: float | None = None
    _output_tokens_s: float | None = None

    def report(
        self, watch: EngineWatch, weight_version: str | None, metrics: Mapping[str, float], now: float
    ) -> WorkerReport:
        """``metrics``: samples by name, empty where the engine has none; another object is another look.
        ``now``: monotonic seconds.
        """
        load = watch.load
        if metrics is not self._counters:
            self._measure(metrics, now)
        # Of an engine that does not say how it is loaded, the last rates are of another time.
        hit_rate, output_tokens_s = (self._hit_rate, self._output_tokens_s) if load else (None, None)
        if output_tokens_s is None and load is not None:
            output_tokens_s = load.output_tokens_s
        return WorkerReport(
            instance=f"{self.instance}/{watch.generation}",
            engine=watch.state,
            weight_version=weight_version,
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            kv_used=load.kv_used if load else None,
            kv_tokens=load.kv_total if load else None,
            cache_hit_rate=hit_rate,
            output_tokens_s=output_tokens_s,
            retractions=int(metrics.get(RETRACTED, 0.0)) if metrics else None,
            detail=watch.why,
        )

    def _measure(self, metrics: Mapping[str, float], now: float) -> None:
        prompt, cached, output = (self._since(metrics, name) for name in (PROMPT, CACHED, OUTPUT))
        seconds = now - self._at
        steady = bool(self._counters) and bool(metrics) and seconds > 0
        self._hit_rate = min(1.0, cached / prompt) if steady and prompt else None
        self._output_tokens_s = output / seconds if steady else None
        self._counters, self._at = metrics, now

    def _since(self, metrics: Mapping[str, float], name: str) -> float:
        """How much a counter grew. An engine that was started again counts from 0."""
        before, now = self._counters.get(name, 0.0), metrics.get(name, 0.0)
        return now - before if now >= before else now
