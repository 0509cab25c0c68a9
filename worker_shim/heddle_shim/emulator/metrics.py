"""What finished requests add up to, and the Prometheus text of one worker under SGLang's metric names.

Times are simulated seconds: the numbers are those of the modelled GPU, whatever the clock's speed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.generation import Ending, Generation

_SECONDS: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600)
_TOKEN_SECONDS: Final = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    1,
)


class Histogram:
    """Counts by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Exposition lines of the histogram."""
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {total}"


class RequestMetrics:
    """Distributions over finished requests."""

    def __init__(self) -> None:
        self.queue = Histogram(_SECONDS)
        self.first_token = Histogram(_SECONDS)
        self.between_tokens = Histogram(_TOKEN_SECONDS)
        self.whole = Histogram(_SECONDS)

    def observe(self, generation: Generation) -> None:
        """Takes a sequence that has ended."""
        end, begun = generation.finished_at, generation.created_at
        if end is None or generation.ending is Ending.REFUSED:
            return
        self.whole.observe(end - begun)
        self.queue.observe((generation.admitted_at if generation.admitted_at is not None else end) - begun)
        if (first := generation.first_token_at) is not None:
            self.first_token.observe(first - begun)
            if generation.made > 1:
                self.between_tokens.observe((end - first) / (generation.made - 1), generation.made - 1)


def exposition(engine: Engine, requests: RequestMetrics, model: str) -> str:
    """The text of /metrics. Priorities are not a label here: a label per priority is what SGLang users
    suffer from.
    """
    labels = f'engine_type="unified",model_name="{_escaped(model)}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    pool, totals = engine.pool, engine.totals
    used = engine.used_tokens()
    share = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    gauges: dict[str, float] = {
        "num_running_reqs": engine.running_count(),
        "num_queue_reqs": len(engine.waiting),
        "num_grammar_queue_reqs": 0,
        "num_paused_reqs": len(engine.live()) if engine.paused else 0,
        "num_retracted_reqs": sum(1 for generation in engine.waiting if generation.retractions),
        "num_used_tokens": used,
        "kv_used_tokens": used,
        "kv_available_tokens": pool.free,
        "kv_evictable_tokens": pool.tree.evictable,
        "max_total_num_tokens": pool.total,
        "token_usage": used / pool.total,
        "full_token_usage": used / pool.total,
        "cache_hit_rate": share,
        "gen_throughput": engine.throughput(),
        "utilization": engine.running_count() / engine.config.max_running_requests,
        "new_token_ratio": engine.new_token_ratio,
    }
    counters: dict[str, float] = {
        "prompt_tokens_total": totals.prompt_tokens,
        "generation_tokens_total": totals.output_tokens,
        "cached_tokens_total": totals.cached_tokens,
        "num_requests_total": totals.requests,
        "num_aborted_requests_total": totals.aborted,
        "num_retracted_requests_total": totals.retractions,
        "evicted_tokens_total": pool.evicted,
    }
    lines: list[str] = []
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, value in values.items():
            lines.append(f"# TYPE sglang:{name} {kind}")
            lines.append(f"sglang:{name}{{{labels}}} {value}")
    for name, histogram in (
        ("queue_time_seconds", requests.queue),
        ("time_to_first_token_seconds", requests.first_token),
        ("inter_token_latency_seconds", requests.between_tokens),
        ("e2e_request_latency_seconds", requests.whole),
    ):
        lines.extend(histogram.lines(f"sglang:{name}", labels))
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
