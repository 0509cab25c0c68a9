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
    """Remembers the last look at the engine's counters, so that a report tells of the time since."""

    instance: str
    _before: Mapping[str, float] = field(default_factory=dict)
    _at: float = 0.0

    def report(
        self, watch: EngineWatch, weight_version: str | None, metrics: Mapping[str, float], now: float
    ) -> WorkerReport:
        """``metrics``: samples by name, empty where the engine has none. ``now``: monotonic seconds."""
        load = watch.load
        seconds = now - self._at
        prompt, cached, output = (self._since(metrics, name) for name in (PROMPT, CACHED, OUTPUT))
        steady = bool(self._before) and seconds > 0
        self._before, self._at = metrics, now
        return WorkerReport(
            instance=f"{self.instance}/{watch.generation}",
            engine=watch.state,
            weight_version=weight_version,
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            kv_used=load.kv_used if load else None,
            kv_tokens=load.kv_total if load else None,
            cache_hit_rate=min(1.0, cached / prompt) if steady and prompt else None,
            output_tokens_s=output / seconds if steady else (load.output_tokens_s if load else None),
            retractions=int(metrics.get(RETRACTED, 0.0)) if metrics else None,
            detail=watch.why,
        )

    def _since(self, metrics: Mapping[str, float], name: str) -> float:
        """How much a counter grew. An engine that was started again counts from 0."""
        before, now = self._before.get(name, 0.0), metrics.get(name, 0.0)
        return now - before if now >= before else now
