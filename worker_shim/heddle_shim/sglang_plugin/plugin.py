"""The SGLang plugin: its entry point, and the hooks.

SGLang calls ``register`` in each of its processes (entry-point group ``sglang.srt.plugins``). The plugin is
on only below a shim that asks for it (``HEDDLE_STORE``), and only in a version of SGLang that it was tried
with. Each feature is checked by itself against the code that is there; one that does not fit is left off,
and the shim learns from ``hello`` what is on. Source of the mechanism: SGLang 0.5.23,
``plugins/hook_registry.py``.
"""

import inspect
import logging
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

log = logging.getLogger(__name__)

TRIED_VERSIONS = ("0.5.23",)
STORE_VARIABLE = "HEDDLE_STORE"

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"
RELEASE = "sglang.srt.mem_cache.common.release_kv_cache"
RETRACT = "sglang.srt.managers.schedule_batch.release_req"
TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
REQUEST = "sglang.srt.managers.schedule_batch.Req"
RESPONSES = (
    "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses._generate_with_builtin_tools"
)

WEIGHT_UPDATES = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)

# What each feature rests on: a callable, and the parameters that it must have.
NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "history": {
        f"{SCHEDULER}.process_input_requests": ("self", "recv_reqs"),
        f"{RECEIVER}._pull_raw_reqs": ("self",),
        RELEASE: ("req", "tree_cache", "checkpoint"),
    },
    "set_priority": {
        f"{SCHEDULER}.process_input_requests": ("self", "recv_reqs"),
        f"{RECEIVER}._pull_raw_reqs": ("self",),
    },
    "warm": {
        f"{SCHEDULER}.process_input_requests": ("self", "recv_reqs"),
        f"{TREE}.prefetch_from_storage": (
            "request",
            "last_host_node_id",
            "new_input_tokens",
            "last_hash",
            "matched_prefix_tokens",
            "extra_key",
            "cache_salt",
        ),
        f"{TREE}.check_prefetch_progress": ("request",),
        f"{TREE}.pop_prefetch_loaded_tokens": ("request",),
        f"{TREE}.get_last_hash_value": ("node_id",),
    },
    "keep_decoded_kv": {
        RETRACT: ("req", "tree_cache", "hisparse_coordinator"),
        f"{TREE}.checkpoint": ("req", "up_to"),
        f"{REQUEST}.owned_kv_len": (),
        f"{REQUEST}.refresh_fill_ids": (),
    },
    "responses_priority": {
        RESPONSES: ("self", "request_id", "request_prompt", "adapted_request", "priority"),
    },
    "weights": {
        f"{UPDATER}.{name}": ("self", "recv_req")
        for name in (*WEIGHT_UPDATES, "begin_weight_update", "end_weight_update")
    }
    | {f"{RUNNER}.check_weights": ("action", "role"), f"{WORKER}.weight_update_runners": ()},
}

_registered = False
_agent: Any = None


def register() -> None:
    """Called by SGLang, once or more in each of its processes."""
    global _registered
    if _registered or not os.environ.get(STORE_VARIABLE):
        return
    _registered = True
    running = version("sglang")
    if not running.startswith(TRIED_VERSIONS):
        log.warning("heddle: the plugin is off: SGLang %s is not among %s", running, TRIED_VERSIONS)
        return
    if os.environ.get("SGLANG_RUST_SERVER", "0").lower() in {"1", "true"}:
        log.warning("heddle: the plugin is off: SGLANG_RUST_SERVER replaces the scheduler's inbox")
        return
    features = tuple(feature for feature in NEEDS if not _misfits(feature))
    _hook(features)


def _misfits(feature: str) -> list[str]:
    """Why a feature cannot be had here; empty if it can."""
    faults = []
    for target, parameters in NEEDS[feature].items():
        try:
            has = inspect.signature(_resolve(target)).parameters
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            faults.append(f"{target}: {error}")
            continue
        faults += [f"{target}: no parameter {name}" for name in parameters if name not in has]
    if faults:
        log.warning("heddle: %s is off: %s", feature, "; ".join(faults))
    return faults


def _resolve(target: str) -> Callable[..., Any]:
    """The module-level function or method of this dotted name."""
    head, _, name = target.rpartition(".")
    try:
        owner: Any = import_module(head)
    except ModuleNotFoundError:
        module, _, owner_name = head.rpartition(".")
        owner = getattr(import_module(module), owner_name)
    found: Callable[..., Any] = getattr(owner, name)
    return found


def _hook(features: tuple[str, ...]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if {"history", "set_priority", "warm"} & set(features):
        HookRegistry.register(f"{SCHEDULER}.init_request_dispatcher", _start_agent(features), HookType.AFTER)
        HookRegistry.register(f"{RECEIVER}._pull_raw_reqs", _add_commands, HookType.AFTER)
        HookRegistry.register(f"{SCHEDULER}.process_input_requests", _take_commands, HookType.AROUND)
    if "history" in features:
        HookRegistry.register(RELEASE, _remember, HookType.BEFORE)
    if "keep_decoded_kv" in features:
        HookRegistry.register(RETRACT, _keep_decoded, HookType.BEFORE)
    if "responses_priority" in features:
        HookRegistry.register(RESPONSES, _give_priority, HookType.BEFORE)
    if "weights" in features:
        from heddle_shim.sglang_plugin.weight_updates import around_begin, around_end, around_update

        for name in WEIGHT_UPDATES:
            HookRegistry.register(f"{UPDATER}.{name}", around_update, HookType.AROUND)
        HookRegistry.register(f"{UPDATER}.begin_weight_update", around_begin, HookType.AROUND)
        HookRegistry.register(f"{UPDATER}.end_weight_update", around_end, HookType.AROUND)


def _start_agent(features: tuple[str, ...]) -> Callable[..., None]:
    def start(result: Any, scheduler: Any) -> None:
        global _agent
        from sglang.srt.runtime_context import get_parallel

        from heddle_shim.sglang_plugin.agent import Agent
        from heddle_shim.sglang_plugin.control import SOCKET, Control

        parallel = get_parallel()
        if parallel.pp_size > 1 or parallel.attn_dp_size > 1:
            log.warning("heddle: commands are off with pipeline parallelism or DP attention")
            return
        first = parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0
        storage = getattr(scheduler, "enable_hicache_storage", False)
        offered = tuple(one for one in features if one != "warm" or storage)
        control = Control(f"ipc://{os.environ[STORE_VARIABLE]}/{SOCKET}") if first else None
        _agent = Agent(scheduler, offered, control)

    return start


def _add_commands(requests: list[Any] | None, receiver: Any) -> list[Any] | None:
    """On rank 0, before SGLang's broadcast."""
    if _agent is not None and requests is not None:
        requests.extend(_agent.pull())
    return requests


def _take_commands(original: Callable[..., Any], scheduler: Any, recv_reqs: list[Any]) -> Any:
    """On every rank, after the broadcast."""
    if _agent is None:
        return original(scheduler, recv_reqs)
    from heddle_shim.sglang_plugin.commands import SetPriority, Warm

    others = []
    for request in recv_reqs:
        if isinstance(request, SetPriority | Warm):
            _agent.carry_out(request)
        else:
            others.append(request)
    result = original(scheduler, others)
    _agent.after_requests()
    return result


def _remember(req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
    if _agent is not None and checkpoint and req.finished():
        _agent.ended(req)


def _keep_decoded(**call: Any) -> None:
    """Before a preempted or retracted request's KV is freed: the tree takes what can be found again.

    In overlap mode a step is in flight whose token is not known yet; only KV of known tokens is kept.
    """
    req, tree = call["req"], call["tree_cache"]
    if call["hisparse_coordinator"] is not None or req.finished() or not req.kv.holds_kv:
        return
    if tree.supports_mamba() or req.skip_radix_cache_insert or not call.get("offload_kv", True):
        return
    req.refresh_fill_ids()
    known = len(req.origin_input_ids) + len(req.output_ids)
    tree.checkpoint(req, up_to=min(req.owned_kv_len(), known))


def _give_priority(
    serving: Any, request_id: str, request_prompt: Any, adapted_request: Any, *_: Any, **named: Any
) -> None:
    """SGLang 0.5.23 reads ``priority`` of /v1/responses and hands it on to nobody. 0 is its "none given"."""
    if named.get("priority"):
        adapted_request.priority = named["priority"]
