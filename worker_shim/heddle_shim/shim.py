"""One shim: an engine, launched or found, and everything that stands beside it.

Started and ended by ``async with``; every task is owned here. What is known of a life of the engine (its KV
events, its plugin's features) is made anew when the engine is another one.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.shim import PrefixQuery, Residency, WorkerReport

from heddle_shim.engine_client import EngineAbsent, EngineClient, EngineRefused, EngineSilent
from heddle_shim.engine_process import EngineProcess
from heddle_shim.engine_watch import EngineSeen, EngineWatch
from heddle_shim.kv_events import DEVICE, HOST, KvEvents
from heddle_shim.page_hashes import event_hash, page_hashes
from heddle_shim.plugin_client import PluginClient, PluginRefused, PluginSilent, Warmed
from heddle_shim.sglang_side import SGLangSide
from heddle_shim.telemetry import Telemetry
from heddle_shim.transfer.page_store import PageStore

log = logging.getLogger(__name__)

PLUGIN_FIRST_DELAY_S: Final = 1.0
PLUGIN_LONGEST_DELAY_S: Final = 60.0
METRICS_EVERY: Final = 5
"""Looks at the load for each look at ``/metrics``, which is longer."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Token ids with the namespace of their KV."""

    tokens: Sequence[int]
    extra_key: str | None = None
    cache_salt: str | None = None


class Shim:
    """``process`` is None beside an engine that somebody else started; ``store`` and ``plugin`` where its KV
    cannot be moved.
    """

    def __init__(
        self,
        client: EngineClient,
        process: EngineProcess | None,
        store: PageStore | None,
        plugin: PluginClient | None,
        period_s: float = 1.0,
    ) -> None:
        self._client = client
        self._process = process
        self._store = store
        self._plugin = plugin
        self._period_s = period_s
        self.watch: Final = EngineWatch(client, self._new_life)
        self.side: Final = SGLangSide(self.watch, store, plugin)
        self.instance: Final = uuid.uuid4().hex
        self._telemetry = Telemetry(self.instance)
        self._events: KvEvents | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._meeting: asyncio.Task[None] | None = None
        self._looks = 0
        self.last_report: WorkerReport | None = None
        self._reported = asyncio.Event()

    async def __aenter__(self) -> "Shim":
        if self._plugin is not None:
            self._plugin.start()
        if self._process is not None:
            self._own(self._process.run(), "engine's process")
            self._own(self._notice_ends(self._process), "engine's ends")
        self._own(self._look(), "engine's watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            await self._process.stop()
        tasks = [*self._tasks, *([self._meeting] if self._meeting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._events is not None:
            await self._events.close()
        if self._plugin is not None:
            await self._plugin.close()
        await self._client.close()

    async def failed(self) -> None:
        """Returns when a task of the shim ended, which none should; raises what it raised."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    # ---------------------------------------------------------------- what the routes ask

    async def next_report(self) -> WorkerReport:
        """The report that is made next."""
        await self._reported.wait()
        assert self.last_report is not None
        return self.last_report

    async def prefix(self, query: PrefixQuery) -> Prefix:
        """Raises PluginRefused where the request is not known, PluginSilent."""
        if query.tokens is not None:
            return Prefix(query.tokens)
        if query.rid is None:
            raise PluginRefused("rid: nothing says which prefix; send rid or tokens")
        past = await self._with_plugin().history(query.rid)
        return Prefix(past.tokens, past.extra_key, past.cache_salt)

    async def warm(self, prefix: Prefix, timeout_s: float) -> Warmed:
        """Raises PluginRefused, PluginSilent."""
        return await self._with_plugin().warm(prefix.tokens, prefix.extra_key, prefix.cache_salt, timeout_s)

    async def set_priority(self, priorities: Mapping[str, int]) -> tuple[int, int]:
        """Raises PluginRefused, PluginSilent."""
        return await self._with_plugin().set_priority(priorities)

    def residency(self, prefix: Prefix) -> Residency:
        """Events name pages without ``extra_key``, and otherwise with ``cache_salt``; then they tell nothing
        that could be compared.
        """
        seen = self.watch.seen
        page_size = int(seen.info.get("page_size") or 1) if seen is not None else 1
        hashes = page_hashes(prefix.tokens, page_size, prefix.extra_key, prefix.cache_salt)
        device = host = None
        if self._events is not None and prefix.cache_salt is None:
            plain = hashes if prefix.extra_key is None else page_hashes(prefix.tokens, page_size)
            named = [event_hash(page) for page in plain]
            resident = self._events.resident
            device, host = resident.prefix(DEVICE, named), resident.prefix(HOST, named)
        namespace = self.side.namespace()
        stored = None
        if self._store is not None and namespace is not None:
            stored = self._store.shelf(namespace).prefix(hashes, range(namespace.layout.parts))
        return Residency(pages=len(hashes), page_size=page_size, device=device, host=host, store=stored)

    def _with_plugin(self) -> PluginClient:
        if self._plugin is None:
            raise PluginRefused("the engine has no plugin; start it by heddle shim --launch")
        return self._plugin

    # ---------------------------------------------------------------- tasks

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _look(self) -> None:
        metrics: Mapping[str, float] = {}
        while True:
            started = time.monotonic()
            await self.watch.look()
            if self._looks % METRICS_EVERY == 0 and self.watch.seen is not None:
                metrics = await self._metrics()
            self._looks += 1
            weights = self.side.facts().weight_version
            self.last_report = self._telemetry.report(self.watch, weights, metrics, time.monotonic())
            self._reported.set()
            self._reported = asyncio.Event()
            if self.watch.state == "dead" and self._store is not None:
                self.side.plugin_features = ()
            await asyncio.sleep(max(0.0, started + self._period_s - time.monotonic()))

    async def _metrics(self) -> Mapping[str, float]:
        try:
            return await self._client.metrics()
        except (EngineAbsent, EngineSilent, EngineRefused):
            return {}

    async def _notice_ends(self, process: EngineProcess) -> None:
        """The process is gone before any question would show it."""
        ends = 0
        while True:
            await process.ended(ends)
            ends += 1
            self.watch.process_ended(process.last_exit or "its process ended")

    def _new_life(self, seen: EngineSeen) -> None:
        if self._meeting is not None:
            self._meeting.cancel()
        self._meeting = asyncio.create_task(self._meet(seen), name="meeting the engine")

    async def _meet(self, seen: EngineSeen) -> None:
        await self._follow_events(seen)
        # Only an engine that a shim launched was given the plugin, and with it the page store.
        if self._plugin is not None and seen.info.get("hicache_storage_backend") == "dynamic":
            self.side.plugin_features = await self._ask_plugin(self._plugin)

    async def _ask_plugin(self, plugin: PluginClient) -> tuple[str, ...]:
        """What it offers, as soon as it says so: an engine that just began to serve may be slow to."""
        delay = PLUGIN_FIRST_DELAY_S
        while True:
            try:
                return await plugin.features()
            except PluginSilent as error:
                log.warning(
                    "the engine's plugin does not answer; it is done without until it does: %s", error
                )
            await asyncio.sleep(delay)
            delay = min(PLUGIN_LONGEST_DELAY_S, delay * 2)

    async def _follow_events(self, seen: EngineSeen) -> None:
        if self._events is not None:
            await self._events.close()
            self._events = None
        described = seen.info.get("kv_events")
        self.side.follows_events = isinstance(described, dict)
        if not isinstance(described, dict):
            return
        host = "127.0.0.1"
        replay = described.get("replay_endpoint_port_base")
        self._events = KvEvents(
            f"tcp://{host}:{described['endpoint_port_base']}",
            f"tcp://{host}:{replay}" if replay else None,
            str(described.get("topic") or ""),
        )
        self._events.start()
