"""vLLM's OpenAI server.

It aborts a request when its connection closes and has no abort route; ``rid`` and ``/generate`` are
SGLang's. Counts come from ``/metrics``. ``/server_info`` exists in its developer mode only
(VLLM_SERVER_DEV_MODE=1), and is the one place where the scheduling policy can be read; without it, priority
is off unless the spec says otherwise, since vLLM answers 400 to a priority under its fcfs policy. With
``--scheduling-policy priority`` lower values go first. Two starts differ in ``process_start_time_seconds``,
where one API process serves (several share no such metric).
"""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.engines.description import (
    DEFAULT_SLOTS,
    Description,
    LoadSample,
    Vitals,
    text_or_none,
    whole_number,
)
from heddle_gateway.fleet.engines.openai_compatible import (
    context_length,
    listed_models,
    model_cards,
    model_ids,
)
from heddle_gateway.fleet.errors import BadAnswer, StillStarting
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense

START_TIME = "process_start_time_seconds"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_SHARE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
CACHE_CONFIG = "vllm:cache_config_info"
WANTED = (START_TIME, RUNNING, WAITING, *KV_SHARE, CACHE_CONFIG)

Metrics = dict[str, list[tuple[dict[str, str], float]]]
"""Samples by name: (labels, value)."""


class VLLMEngine:
    kind = EngineKind.VLLM

    async def describe(self, ask: Asking) -> Description | None:
        try:
            version = text_or_none((await ask.get_json("/version")).get("version"))
        except BadAnswer as error:
            if error.status == 503:
                raise StillStarting(str(error)) from error
            return None
        metrics = await _metrics(ask)
        cards = await model_cards(ask)
        if RUNNING not in metrics and not any(card.get("owned_by") == "vllm" for card in cards):
            return None
        await _require_healthy(ask)
        config = await _developer_config(ask)
        scheduler = _section(config, "scheduler_config")
        parallel = _section(config, "parallel_config")
        ranks = whole_number(parallel.get("data_parallel_size"), 1)
        by_priority = scheduler.get("policy") == "priority"
        return Description(
            kind=self.kind,
            features=Features(
                loads=RUNNING in metrics,
                priority=PrioritySense.LOWER_FIRST if by_priority else PrioritySense.NONE,
            ),
            models=model_ids(cards),
            vitals=Vitals(_life(metrics)),
            degree=whole_number(parallel.get("tensor_parallel_size"), 1),
            slots=whole_number(scheduler.get("max_num_seqs"), DEFAULT_SLOTS) * ranks,
            kv_tokens=_kv_tokens(metrics),
            context_length=context_length(cards),
            version=version,
            data_parallel=ranks,
            pipeline_parallel=whole_number(parallel.get("pipeline_parallel_size"), 1),
        )

    async def check(self, ask: Asking) -> Vitals:
        await _require_healthy(ask)
        return Vitals(_life(await _metrics(ask)), models=await listed_models(ask))

    async def load(self, ask: Asking, kv_tokens: int) -> LoadSample:
        metrics = await _metrics(ask)
        if RUNNING not in metrics:
            raise BadAnswer(f"/metrics: no {RUNNING}", 200)
        shares = [value for name in KV_SHARE for _labels, value in metrics.get(name, [])]
        share = sum(shares) / len(shares) if shares else 0.0
        return LoadSample(_total(metrics, RUNNING), _total(metrics, WAITING), int(share * kv_tokens))


async def _require_healthy(ask: Asking) -> None:
    reply = await ask.request("GET", "/health")
    if reply.status != 200:
        raise StillStarting(f"/health: HTTP {reply.status}")


async def _metrics(ask: Asking) -> Metrics:
    """The wanted samples; empty where metrics are off."""
    reply = await ask.request("GET", "/metrics")
    if reply.status != 200:
        return {}
    return wanted_samples(reply.body.decode("utf-8", "replace"))


def wanted_samples(text: str) -> Metrics:
    """Only the lines in question go through the parser: vLLM's page is long, and it is read every second.

    A page that breaks the text format counts as no page.
    """
    lines = [line for line in text.splitlines() if line.startswith(WANTED)]
    found: Metrics = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name in WANTED and sample.value == sample.value:
                    found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except ValueError:
        return {}
    return found


async def _developer_config(ask: Asking) -> dict[str, Any]:
    try:
        found = await ask.get_json("/server_info", {"config_format": "json"})
    except BadAnswer:
        return {}
    return _section(found, "vllm_config")


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _total(metrics: Metrics, name: str) -> int:
    return int(sum(max(value, 0.0) for _labels, value in metrics.get(name, [])))


def _kv_tokens(metrics: Metrics) -> int:
    """Blocks times block size, summed over engines (one series each)."""
    total = 0
    for labels, _value in metrics.get(CACHE_CONFIG, []):
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdecimal() and size.isdecimal():
            total += int(blocks) * int(size)
    return total


def _life(metrics: Metrics) -> dict[str, str]:
    starts = metrics.get(START_TIME, [])
    return {START_TIME: repr(starts[0][1])} if starts else {}
