"""Hooks around SGLang's weight updates: they tell ``LIVE`` when weights change, and what they are then.

They run in the scheduler's thread of each rank, all ranks in step. Source: SGLang 0.5.23,
``managers/scheduler_components/weight_updater.py`` and ``utils/weight_checker.py``.
"""

import hashlib
import logging
import uuid
from collections.abc import Callable
from typing import Any, Final

import torch
from sglang.srt.runtime_context import get_serving

from heddle_shim.sglang_plugin.weights import LIVE

log = logging.getLogger(__name__)

MARK_DIGITS: Final = 16


def around_update(original: Callable[..., Any], updater: Any, recv_req: Any) -> Any:
    """Of ``update_weights_from_disk`` and its like."""
    LIVE.begin_update(_version())
    changed, mark = True, unlike_any  # One that raised may have changed some of the weights, on some ranks.
    try:
        result = original(updater, recv_req)
        changed, mark = bool(getattr(result, "success", True)), lambda: mark_of(updater)
        return result
    finally:
        LIVE.end_update(_version(), changed=changed, mark=mark)


def around_begin(original: Callable[..., Any], updater: Any, recv_req: Any) -> Any:
    """Of ``begin_weight_update``: what comes until ``end_weight_update`` is one update."""
    was_open = updater._session is not None
    LIVE.begin_update(_version())
    try:
        return original(updater, recv_req)
    finally:
        if was_open or updater._session is None:
            LIVE.end_update(_version(), changed=not was_open, mark=unlike_any)


def around_end(original: Callable[..., Any], updater: Any, recv_req: Any) -> Any:
    """Of ``end_weight_update``. Weights may have been written into memory without a call for each."""
    was_open = updater._session is not None
    result = original(updater, recv_req)
    if was_open:
        LIVE.end_update(_version(), changed=True, mark=lambda: mark_of(updater))
    return result


def mark_of(updater: Any) -> str:
    """Of the weights of all ranks, the same on each. Where one of them cannot say what it has, a mark that
    no other weights have.
    """
    own = (_checksum(updater), unlike_any())
    group = updater.tp_cpu_group
    everyone = [own] * torch.distributed.get_world_size(group=group)
    if len(everyone) > 1:
        torch.distributed.all_gather_object(everyone, own, group=group)
    if any(checksum is None for checksum, _ in everyone):
        return everyone[0][1]
    return hashlib.sha256(repr([checksum for checksum, _ in everyone]).encode()).hexdigest()[:MARK_DIGITS]


def unlike_any() -> str:
    return uuid.uuid4().hex[:MARK_DIGITS]


def _checksum(updater: Any) -> str | None:
    """Of this rank's weights, by SGLang's own weight checker; a draft model makes no KV that is stored."""
    try:
        found = [
            runner.check_weights(action="checksum", role=role)["per_gpu_checksum"]
            for role, runner in updater.tp_worker.weight_update_runners()
        ]
    # The other ranks wait for this one's word, whatever went wrong here: memory, a kind of quantisation.
    except Exception:
        log.exception("heddle: the weights of an update without a name could not be told from others")
        return None
    return " ".join(found)


def _version() -> str:
    return str(get_serving().weight_version)
