"""SGLang as the shim's migrations see it: pages in the page store, histories and priorities by its plugin."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from heddle_contracts.kv import EngineFacts, KvNamespace, MigrationFault, MigrationRequest

from heddle_shim.engine_version import OLDEST_FOR_KV, parse_version
from heddle_shim.engine_watch import EngineSeen, EngineWatch
from heddle_shim.page_hashes import page_hashes
from heddle_shim.plugin_client import PluginClient, PluginRefused, PluginSilent
from heddle_shim.sglang_plugin.engine_note import read_note
from heddle_shim.transfer.engine_side import EngineState, Offer, PageSink, PageSource
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.page_store import PageStore
from heddle_shim.transfer.stored_pages import StoredSink, StoredSource

log = logging.getLogger(__name__)

WRITTEN_THROUGH_S: Final = 2.0
"""The engine stores pages in the background; the last of a step are there within this, or never."""
POLL_S: Final = 0.01
UNMOVABLE: Final = {
    "pp_size": "pipeline stages hold other layers",
    "attn_cp_size": "context-parallel ranks hold other tokens",
    "dcp_size": "context-parallel ranks hold other tokens",
}


class SGLangSide:
    """Fulfils ``transfer.engine_side.EngineSide``. ``store`` is None where KV cannot be moved."""

    def __init__(self, watch: EngineWatch, store: PageStore | None, plugin: PluginClient | None) -> None:
        self._watch = watch
        self._store = store
        self._plugin = plugin
        self.plugin_features: tuple[str, ...] = ()
        self.follows_events = False

    def facts(self) -> EngineFacts:
        seen = self._watch.seen
        if seen is None:
            return EngineFacts()
        info = seen.info
        return EngineFacts(
            version=_text(info.get("version")),
            model=_text(info.get("served_model_name")),
            weight_version=self._weights(seen),
            tp_size=_count(info.get("tp_size")),
            pp_size=_count(info.get("pp_size")),
            dp_size=_count(info.get("dp_size")),
            page_size=_count(info.get("page_size")),
            kv_dtype=self._kv_dtype(info),
            kv_tokens=_count(info.get("max_total_num_tokens")),
            slots=_count(info.get("max_running_requests")) or _slots(info),
            features=self._features(seen),
        )

    def state(self) -> EngineState:
        return self._watch.state

    def namespace(self) -> KvNamespace | None:
        if self._store is None or self._watch.seen is None or self.cannot_migrate() is not None:
            return None
        note = read_note(self._store.root)
        if note is None:
            return None
        said = self._watch.seen.weight_version
        if said != note.base_version:
            # The engine has new weights and has not stored a page since.
            return note.namespace.model_copy(update={"weight_version": said})
        return note.namespace

    def cannot_migrate(self) -> str | None:
        seen = self._watch.seen
        if self._store is None:
            return "the engine runs without the page store; start it by heddle shim --launch, without --no-kv"
        if seen is None:
            return f"the engine is {self._watch.state}: {self._watch.why or 'it has not answered yet'}"
        return self._misfit(seen)

    def _misfit(self, seen: EngineSeen) -> str | None:
        info = seen.info
        if parse_version(info.get("version")) < OLDEST_FOR_KV:
            oldest = ".".join(map(str, OLDEST_FOR_KV))
            return f"version: SGLang {info.get('version')} is older than {oldest}; update it"
        for name, why in UNMOVABLE.items():
            if (_count(info.get(name)) or 1) > 1:
                return f"{name}: {info[name]}, and {why}; only tensor parallelism can be moved"
        if info.get("enable_dp_attention") and (_count(info.get("dp_size")) or 1) > 1:
            return "enable_dp_attention: each rank has a cache of its own; leave it out"
        if "EAGLE" in str(info.get("speculative_algorithm")).upper():
            return "speculative_algorithm: pages of EAGLE are named otherwise; leave it out"
        if info.get("hicache_storage_backend") != "dynamic":
            return "hicache_storage_backend: not Heddle's; start the engine by heddle shim --launch"
        return None

    # ---------------------------------------------------------------- moving

    async def open_source(self, request: MigrationRequest) -> PageSource:
        store, namespace = self._ready()
        if request.weight_version is not None and request.weight_version != namespace.weight_version:
            raise TransferFault(
                MigrationFault.WEIGHTS_CHANGED,
                f"weight_version: {request.weight_version} asked for, {namespace.weight_version} here",
            )
        hashes = await self._hashes_of(request, namespace.layout.page_size)
        await self._written_through(store, namespace, hashes, request.deadline_s)
        return StoredSource(store, namespace, hashes, request.id, request.deadline_s)

    async def open_sink(self, offer: Offer) -> PageSink:
        store, namespace = self._ready()
        return StoredSink(store, namespace, offer)

    def _ready(self) -> tuple[PageStore, KvNamespace]:
        namespace = self.namespace()
        if self._store is None or namespace is None:
            raise TransferFault(
                MigrationFault.ENGINE, self.cannot_migrate() or "the engine has not said which pages it makes"
            )
        return self._store, namespace

    async def _hashes_of(self, request: MigrationRequest, page_size: int) -> list[str]:
        if request.page_hashes is not None:
            return list(request.page_hashes)
        if request.tokens is not None:
            return page_hashes(request.tokens, page_size)
        assert request.rid is not None, "MigrationRequest names its KV"
        if self._plugin is None:
            raise TransferFault(
                MigrationFault.ENGINE, "rid: the engine has no plugin that knows its requests"
            )
        try:
            past = await self._plugin.history(request.rid)
        except PluginRefused as error:
            raise TransferFault(MigrationFault.NOTHING_TO_MOVE, str(error)) from error
        except PluginSilent as error:
            raise TransferFault(MigrationFault.ENGINE, str(error)) from error
        # The last token was sampled, not run: it has no KV.
        return page_hashes(past.tokens[:-1], page_size, past.extra_key, past.cache_salt)

    async def _written_through(
        self, store: PageStore, namespace: KvNamespace, hashes: Sequence[str], deadline_s: float
    ) -> None:
        """Waits for the engine to have stored the prefix, as long as it makes progress."""
        shelf, parts = store.shelf(namespace), range(namespace.layout.parts)
        with_progress = min(WRITTEN_THROUGH_S, deadline_s / 2)
        found = -1
        try:
            async with asyncio.timeout(with_progress) as limit:
                while found < len(hashes):
                    now = shelf.prefix(hashes, parts)
                    if now > found:
                        found = now
                        limit.reschedule(asyncio.get_running_loop().time() + with_progress / 4)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass  # The rest was evicted, or never stored: what is there is moved.

    # ---------------------------------------------------------------- what it is

    def _weights(self, seen: EngineSeen) -> str:
        namespace = self.namespace()
        return seen.weight_version if namespace is None else namespace.weight_version

    def _kv_dtype(self, info: dict[str, Any]) -> str | None:
        namespace = self.namespace()
        return _text(info.get("kv_cache_dtype")) if namespace is None else namespace.layout.dtype

    def _features(self, seen: EngineSeen) -> tuple[str, ...]:
        found = [path.strip("/").replace("/", "_").replace("-", "_") for path in sorted(seen.paths)]
        if seen.info.get("enable_priority_scheduling") is True:
            found.append("priority")
        if self.follows_events:
            found.append("kv_events")
        if self._store is not None and self._misfit(seen) is None and read_note(self._store.root):
            found.append("page_store")
        return (*found, *self.plugin_features)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and value >= 1 else None


def _slots(info: dict[str, Any]) -> int | None:
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    return _count(first.get("effective_max_running_requests_per_dp"))
