"""SGLang, and the emulated engine that looks like it.

Read from SGLang 0.5.23: ``srt/entrypoints/http_server.py`` (routes), ``srt/entrypoints/v1_loads.py``,
``srt/managers/load_snapshot.py`` (load fields), ``srt/managers/scheduler_components/internal_state.py``.

* ``/server_info`` asks the scheduler, which answers also while generation is paused and costs no token;
  ``/health`` generates a token when idle and fails while paused. So the first is the periodic probe.
* Two starts differ in ``random_seed`` (drawn when not given) and in ``startup_time`` (measured seconds of
  loading).
* ``/ping`` is 200 when start-up is over, also while paused; releases without it answer 404, then
  ``/health`` is asked.
* Capacities are per data-parallel rank.
"""

import json
from typing import Any

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
from heddle_gateway.fleet.errors import BadAnswer, EngineBusy, NoAnswerInTime, StillStarting
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense

SERVER_INFO = ("/server_info", "/get_server_info")
MODEL_INFO = ("/model_info", "/get_model_info")
LIFE_MARKS = (
    "heddle_instance_id",
    "random_seed",
    "startup_time",
    "launch_command",
    "tp_size",
    "max_total_num_tokens",
)


class SGLangEngine:
    kind = EngineKind.SGLANG

    async def describe(self, ask: Asking) -> Description | None:
        try:
            info = await _first_of(ask, SERVER_INFO)
        except BadAnswer as error:
            if error.status in {401, 403}:
                raise
            return None
        if "tp_size" not in info or not ({"max_total_num_tokens", "internal_states"} & info.keys()):
            return None
        await _require_started(ask)
        model_info = await _model_info(ask)
        cards = await model_cards(ask)
        models = model_ids(cards)
        ranks = whole_number(info.get("dp_size"), 1)
        state = _first_internal_state(info)
        per_rank = whole_number(state.get("effective_max_running_requests_per_dp"), 0)
        return Description(
            kind=self.kind,
            features=Features(
                abort=await ask.has("/abort_request"),
                rid=True,
                loads=await _has_loads(ask),
                generate=await ask.has("/generate"),
                pause=await ask.has("/pause_generation"),
                flush=True,
                priority=_priority(info),
            ),
            models=models or tuple(filter(None, [text_or_none(model_info.get("served_model_name"))])),
            vitals=Vitals(_life(info), text_or_none(model_info.get("weight_version"))),
            degree=whole_number(info.get("tp_size"), 1),
            slots=per_rank * ranks or whole_number(info.get("max_running_requests"), DEFAULT_SLOTS),
            kv_tokens=whole_number(info.get("max_total_num_tokens"), 0) * ranks,
            context_length=context_length(cards),
            version=text_or_none(info.get("version")),
            emulated=info.get("heddle_emulated") is True,
            shim_url=text_or_none(info.get("heddle_shim_url"))
            if info.get("heddle_emulated") is True
            else None,
            page_size=whole_number(info.get("page_size"), 0) or None,
            preemption_threshold=_preemption_threshold(info),
            data_parallel=ranks,
            pipeline_parallel=whole_number(info.get("pp_size"), 1),
        )

    async def check(self, ask: Asking) -> Vitals:
        try:
            info = await _first_of(ask, SERVER_INFO)
        except NoAnswerInTime as error:
            await _raise_if_busy(ask, error)
            raise
        model_info = await _model_info(ask)
        version = text_or_none(model_info.get("weight_version"))
        return Vitals(_life(info), version, await listed_models(ask))

    async def load(self, ask: Asking, kv_tokens: int) -> LoadSample:
        return _sample(await ask.get_json("/v1/loads", {"include": "core"}))


async def _first_of(ask: Asking, paths: tuple[str, ...]) -> dict[str, Any]:
    """The answer of the first path that exists; the second is what older releases call it."""
    for path in paths[:-1]:
        try:
            return await ask.get_json(path)
        except BadAnswer as error:
            if error.status == 503:
                raise StillStarting(str(error)) from error
            if error.status != 404:
                raise
    return await ask.get_json(paths[-1])


async def _model_info(ask: Asking) -> dict[str, Any]:
    try:
        return await _first_of(ask, MODEL_INFO)
    except BadAnswer:
        return {}


async def _require_started(ask: Asking) -> None:
    for path in ("/ping", "/health"):
        reply = await ask.request("GET", path)
        if reply.status == 200:
            return
        if reply.status != 404:
            raise StillStarting(f"{path}: HTTP {reply.status}")


async def _raise_if_busy(ask: Asking, error: NoAnswerInTime) -> None:
    """The scheduler is silent. /ping is answered by the front alone: 200 there means that the engine works.

    A scheduler that hangs for good is ended by SGLang's own watchdog (300 s by default), and then the port is
    closed.
    """
    reply = await ask.request("GET", "/ping")
    if reply.status == 200:
        raise EngineBusy(f"the scheduler does not answer, the server does ({error})") from error


async def _has_loads(ask: Asking) -> bool:
    try:
        _sample(await ask.get_json("/v1/loads", {"include": "core"}))
    except BadAnswer:
        return False
    return True


def _sample(found: dict[str, Any]) -> LoadSample:
    ranks = found.get("loads")
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise BadAnswer("/v1/loads: no list named loads", 200)

    def total(key: str) -> int:
        return sum(whole_number(rank.get(key), 0) for rank in ranks)

    return LoadSample(
        total("num_running_reqs"), total("num_waiting_reqs"), total("num_used_tokens"), tuple(ranks)
    )


def _priority(info: dict[str, Any]) -> PrioritySense:
    if info.get("enable_priority_scheduling") is not True:
        return PrioritySense.NONE
    if info.get("schedule_low_priority_values_first") is True:
        return PrioritySense.LOWER_FIRST
    return PrioritySense.HIGHER_FIRST


def _preemption_threshold(info: dict[str, Any]) -> int | None:
    """None where the engine never preempts for priority."""
    if info.get("enable_priority_scheduling") is not True or info.get("disable_priority_preemption") is True:
        return None
    threshold = info.get("priority_scheduling_preemption_threshold")
    return threshold if isinstance(threshold, int) and not isinstance(threshold, bool) else None


def _first_internal_state(info: dict[str, Any]) -> dict[str, Any]:
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], dict):
        return states[0]
    return {}


def _life(info: dict[str, Any]) -> dict[str, str]:
    return {
        key: json.dumps(info[key], sort_keys=True)[:4096] for key in LIFE_MARKS if info.get(key) is not None
    }
