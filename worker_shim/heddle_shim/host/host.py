"""The engines of one machine, by the GPUs they hold.

Invariants: a GPU belongs to at most one engine; an engine's GPUs are free only once its process has ended; no
engine is stopped while a gateway has steps on it, unless that is forced.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from heddle_contracts.fleet import EngineState, HostEngine, HostStatus

from heddle_shim.host.gateways import DrainFailed, Gateways
from heddle_shim.host.gpus import NoRoom, check, pick
from heddle_shim.host.launching import Launcher, LaunchFailed, Running

log = logging.getLogger(__name__)


class UnknownEngine(Exception):
    """No engine of this id on this host."""


class NotNow(Exception):
    """The engine is in a state that does not allow it; the message names it."""


@dataclass
class _Engine:
    id: str
    degree: int
    gpus: tuple[int, ...]
    state: EngineState = EngineState.STARTING
    running: Running | None = None
    detail: str = ""
    started_in_s: float | None = None
    is_held: bool = True
    """Its GPUs are its own."""
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    def waits_for(self, what: str) -> None:
        self.detail = what

    def shown(self) -> HostEngine:
        return HostEngine(
            id=self.id,
            degree=self.degree,
            gpus=self.gpus,
            state=self.state,
            url=None if self.running is None else self.running.url,
            detail=self.detail,
            started_in_s=self.started_in_s,
        )


class Host:
    """``drain_s``: how long running steps of an engine that is stopped may take. ``join_s``: how long the
    gateways may take until they give steps to an engine that is ready.
    """

    def __init__(
        self,
        name: str,
        gpus: int,
        launcher: Launcher,
        gateways: Gateways,
        *,
        emulated: bool = False,
        drain_s: float = 600.0,
        join_s: float = 1800.0,
    ) -> None:
        self._name = name
        self._gpus = gpus
        self._launcher = launcher
        self._gateways = gateways
        self._emulated = emulated
        self._drain_s = drain_s
        self._join_s = join_s
        self._engines: dict[str, _Engine] = {}
        self._ids = count(1)

    def status(self) -> HostStatus:
        return HostStatus(
            name=self._name,
            gpus=self._gpus,
            emulated=self._emulated,
            engines=tuple(engine.shown() for engine in self._engines.values()),
        )

    def engine(self, engine_id: str) -> HostEngine:
        """Raises UnknownEngine."""
        return self._known(engine_id).shown()

    def start(self, degree: int | None, gpus: Sequence[int] | None) -> HostEngine:
        """Launches an engine and returns at once. Raises NoRoom."""
        taken = {gpu for engine in self._engines.values() if engine.is_held for gpu in engine.gpus}
        if gpus is None:
            if degree is None:
                raise NoRoom("degree: give a degree, or gpus")
            chosen = pick(self._gpus, taken, degree)
        else:
            chosen = check(self._gpus, taken, gpus)
            if degree is not None and degree != len(chosen):
                raise NoRoom(f"degree: {degree} does not go with {len(chosen)} gpus")
        engine = _Engine(f"e{next(self._ids)}", len(chosen), chosen)
        # A failed one on these GPUs has told what it had to tell.
        for old in [one for one in self._engines.values() if not one.is_held and set(one.gpus) & set(chosen)]:
            del self._engines[old.id]
        self._engines[engine.id] = engine
        engine.task = asyncio.create_task(self._bring_up(engine), name=f"start {engine.id}")
        return engine.shown()

    def stop(self, engine_id: str, *, force: bool = False) -> HostEngine:
        """Drains the engine and ends it; returns at once. ``force``: does not wait for its steps. Raises
        UnknownEngine, NotNow.
        """
        engine = self._known(engine_id)
        if engine.state is EngineState.STARTING:
            raise NotNow(f"{engine_id} is starting: wait until it is ready or failed")
        if not engine.is_held:
            del self._engines[engine_id]
            return engine.shown()
        if engine.state is EngineState.DRAINING and not force:
            return engine.shown()
        if engine.task is not None:
            engine.task.cancel()
        engine.state, engine.detail = EngineState.DRAINING, ""
        engine.task = asyncio.create_task(self._take_down(engine, force), name=f"stop {engine_id}")
        return engine.shown()

    async def close(self) -> None:
        """Ends all engines: the gateways are told, nothing is waited for."""
        engines = list(self._engines.values())
        for engine in engines:
            if engine.task is not None:
                engine.task.cancel()
        await asyncio.gather(*(one.task for one in engines if one.task is not None), return_exceptions=True)
        # The others' own shims tell it, as they end.
        held = [one.running for one in engines if one.running is not None and one.is_held]
        ours = [running.url for running in held if not running.registers_itself]
        await asyncio.gather(*map(self._gateways.leave, ours))
        await asyncio.gather(*(self._end(engine) for engine in engines), return_exceptions=True)
        await self._gateways.close()

    # ---------------------------------------------------------------- inside

    async def _bring_up(self, engine: _Engine) -> None:
        began = time.monotonic()
        try:
            engine.running = await self._launcher.launch(engine.degree, engine.gpus)
            await engine.running.ready()
            running = engine.running
            if running.registers_itself:
                await self._gateways.in_service(running.url, self._join_s, engine.waits_for)
            else:
                await self._gateways.add(running.url, running.shim_url, engine.degree)
        except (LaunchFailed, DrainFailed, OSError, ValueError) as error:
            log.error("engine %s on GPUs %s does not start: %s", engine.id, engine.gpus, error)
            await self._end(engine)
            # Failed with a URL means one that would not drain and holds its GPUs.
            engine.running = None
            engine.state, engine.detail = EngineState.FAILED, str(error)
            return
        engine.state, engine.detail = EngineState.READY, ""
        engine.started_in_s = round(time.monotonic() - began, 3)

    async def _take_down(self, engine: _Engine, force: bool) -> None:
        if engine.running is not None and not force:
            try:
                await self._gateways.drain(engine.running.url, self._drain_s)
            except DrainFailed as error:
                engine.state, engine.detail = EngineState.FAILED, str(error)
                return
        await self._end(engine)
        self._engines.pop(engine.id, None)

    async def _end(self, engine: _Engine) -> None:
        if engine.running is not None:
            await engine.running.stop()
        engine.is_held = False

    def _known(self, engine_id: str) -> _Engine:
        engine = self._engines.get(engine_id)
        if engine is None:
            raise UnknownEngine(f"no engine {engine_id} on {self._name}")
        return engine
