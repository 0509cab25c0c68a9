"""The plugin's part in one scheduler process: carries out the shim's commands, remembers ended requests.

Every rank of an engine handles the same commands in the same iteration, because they come with SGLang's own
broadcast, and nothing here depends on a clock: ranks that decided differently would hang each other. Source
of the calls: SGLang 0.5.23, ``managers/scheduler.py`` (``_prefetch_kvcache``) and
``mem_cache/unified_radix_cache.py``.
"""

import logging
from array import array
from collections import OrderedDict
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from heddle_shim.sglang_plugin.commands import Command, SetPriority, Warm
from heddle_shim.sglang_plugin.control import Control
from heddle_shim.sglang_plugin.history import EndedRequest, History

log = logging.getLogger(__name__)

MAX_REMEMBERED = 4096
"""Priorities of requests that are still in the tokenizer."""
MAX_WARMING = 32


class Agent:
    """``control`` is None on all ranks but the first."""

    def __init__(self, scheduler: Any, features: tuple[str, ...], control: Control | None) -> None:
        self._scheduler = scheduler
        self._features = features
        self._control = control
        self._history = History()
        self._tickets = 0
        self._askers: dict[int, tuple[bytes, dict[str, Any]]] = {}
        self._remembered: OrderedDict[str, int] = OrderedDict()
        self._warming: dict[int, tuple[Any, int]] = {}

    # ---------------------------------------------------------------- rank 0, before the broadcast

    def pull(self) -> list[Command]:
        """Answers what rank 0 knows by itself; the rest becomes commands for all ranks."""
        if self._control is None:
            return []
        commands: list[Command] = []
        for asker, request in self._control.requests():
            try:
                command = self._understand(asker, request)
            # The boundary to the shim: a request that cannot be carried out must not end the scheduler.
            except Exception as fault:  # noqa: BLE001
                self._control.answer(asker, request, error=f"{type(fault).__name__}: {fault}")
                continue
            if command is not None:
                self._askers[command.ticket] = (asker, request)
                commands.append(command)
        return commands

    def _understand(self, asker: bytes, request: dict[str, Any]) -> Command | None:
        assert self._control is not None
        match request["op"]:
            case "hello":
                self._control.answer(asker, request, features=list(self._features))
            case "history":
                self._control.answer(asker, request, **self._told(request["rid"]))
            case "set_priority" if "set_priority" in self._features:
                return SetPriority(self._ticket(), {str(k): int(v) for k, v in request["priorities"].items()})
            case "warm" if "warm" in self._features:
                tokens = [int(token) for token in request["tokens"]]
                return Warm(self._ticket(), tokens, request.get("extra_key"), request.get("cache_salt"))
            case other:
                self._control.answer(asker, request, error=f"op: {other!r} is not offered by this engine")
        return None

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _told(self, rid: str) -> dict[str, Any]:
        ended = self._history.find(rid)
        if ended is None:
            return {"error": f"rid: no request {rid[:100]!r} ended here lately"}
        ids = array("I", ended.prompt)
        ids.extend(array("I", ended.output))
        return {"tokens": ids.tobytes(), "extra_key": ended.extra_key, "cache_salt": ended.cache_salt}

    # ---------------------------------------------------------------- all ranks, in step

    def carry_out(self, command: Command) -> None:
        try:
            if isinstance(command, SetPriority):
                self._set_priority(command)
            else:
                self._warm(command)
        # As above. All ranks see the same fault, since they have the same requests and tree.
        except Exception as fault:
            log.exception("heddle: %s failed", type(command).__name__)
            self._reply(command.ticket, error=f"{type(fault).__name__}: {fault}")

    def after_requests(self) -> None:
        """Each iteration, when SGLang has taken in its requests."""
        if self._remembered:
            for request in self._scheduler.waiting_queue:
                priority = self._remembered.pop(request.rid, None)
                if priority is not None:
                    request.priority = priority
        for ticket, (handle, matched) in list(self._warming.items()):
            tree = self._scheduler.tree_cache
            if tree.check_prefetch_progress(handle):
                del self._warming[ticket]
                self._reply(ticket, had=matched, loaded=_loaded(tree, handle))

    def _set_priority(self, command: SetPriority) -> None:
        left = dict(command.priorities)
        for request in self._live_requests():
            priority = left.pop(request.rid, None)
            if priority is not None:
                request.priority = priority
        for rid, priority in left.items():
            self._remembered[rid] = priority
            self._remembered.move_to_end(rid)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._reply(command.ticket, applied=len(command.priorities) - len(left), remembered=len(left))

    def _live_requests(self) -> list[Any]:
        scheduler = self._scheduler
        chunked = [scheduler.chunked_req] if scheduler.chunked_req is not None else []
        waiting_for_grammar = list(scheduler.grammar_manager.grammar_queue)
        return [*scheduler.waiting_queue, *scheduler.running_batch.reqs, *chunked, *waiting_for_grammar]

    def _warm(self, command: Warm) -> None:
        tree = self._scheduler.tree_cache
        if len(self._warming) >= MAX_WARMING:
            self._reply(command.ticket, error=f"{MAX_WARMING} prefixes are being loaded already")
            return
        ids = array("q", command.tokens[: len(command.tokens) // tree.page_size * tree.page_size])
        key = RadixKey(ids, command.extra_key, cache_salt=command.cache_salt)
        match = tree.match_prefix(MatchPrefixParams(key=key))
        matched = match.device_prefix_len + match.host_hit_length
        anchor = match.last_host_node
        if matched >= len(ids):
            self._reply(command.ticket, had=matched, loaded=0)
            return
        if not (tree.is_backuped(anchor) or tree.is_root(anchor)):
            self._reply(command.ticket, error="the end of what the engine has is not in its host memory")
            return
        handle = CacheRequestHandle(f"heddle-warm-{command.ticket}", 0)
        tree.prefetch_from_storage(
            handle,
            anchor,
            ids[matched:],
            tree.get_last_hash_value(anchor),
            None,
            matched_prefix_tokens=ids[:matched],
            extra_key=command.extra_key,
            cache_salt=command.cache_salt,
        )
        self._warming[command.ticket] = (handle, matched)

    def _reply(self, ticket: int, **said: Any) -> None:
        asked = self._askers.pop(ticket, None)
        if asked is not None and self._control is not None:
            self._control.answer(*asked, **said)

    # ---------------------------------------------------------------- ended requests

    def ended(self, request: Any) -> None:
        if self._control is not None:
            self._history.remember(
                request.rid,
                EndedRequest(
                    request.origin_input_ids,
                    request.output_ids_through_stop,
                    request.extra_key,
                    request.cache_salt,
                ),
            )


def _loaded(tree: Any, handle: Any) -> int:
    """Tokens that a finished load brought; nothing of it is left to be retried."""
    tree.storage_prefetch_retries.cancel(handle.rid)
    tokens: int = tree.pop_prefetch_loaded_tokens(handle)
    return tokens
