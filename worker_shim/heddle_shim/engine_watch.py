"""Watches one engine by asking it: is it starting, ready, busy or dead, what is it, what does it carry.

*Busy* and *dead* look alike to somebody who waits for an answer. They are told apart by who answers: the
scheduler is silent in a long prefill or while weights load, but the HTTP front answers ``/ping`` by itself;
where nothing accepts a connection, or the process has ended, the engine is dead.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from heddle_shim.engine_client import EngineAbsent, EngineClient, EngineLoad, EngineRefused, EngineSilent
from heddle_shim.transfer.engine_side import EngineState

log = logging.getLogger(__name__)

ASK_ALL_EVERY: Final = 5
"""Looks at load and weights for each question to the scheduler."""
ABSENT_BEFORE_DEAD: Final = 2
"""Refused connections in a row that mean dead: the first may be a restart of the HTTP front alone."""

LIFE_MARKS: Final = ("random_seed", "startup_time", "launch_command", "heddle_instance_id")
"""What differs between two starts of one server (SGLang draws the seed where none is given)."""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """What the engine said of itself in this life."""

    info: dict[str, Any]
    weight_version: str
    paths: frozenset[str]
    """Routes that it has, of those that were asked for."""

    @property
    def life(self) -> tuple[str, ...]:
        return tuple(repr(self.info.get(mark)) for mark in LIFE_MARKS)


ASKED_PATHS: Final = (
    "/generate",
    "/abort_request",
    "/pause_generation",
    "/update_weights_from_disk",
    "/hicache/storage-backend",
)


class EngineWatch:
    """``on_life`` is called when an engine became ready: at first, and after each restart of it."""

    def __init__(self, client: EngineClient, on_life: Callable[[EngineSeen], None]) -> None:
        self._client = client
        self._on_life = on_life
        self._absent = 0
        self._checks = 0
        self.state: EngineState = "starting"
        self.seen: EngineSeen | None = None
        self.load: EngineLoad | None = None
        self.generation = 0
        self.why = ""
        """What was wrong with the last answer."""

    def process_ended(self, why: str) -> None:
        """The engine's process is gone; nobody needs to ask."""
        self._dead(why)

    async def look(self) -> None:
        """Asks once."""
        try:
            if self.seen is None:
                await self._meet()
            else:
                await self._check()
            self._absent = 0
        except EngineAbsent as error:
            self._absent += 1
            self.why = str(error)
            if self.seen is not None and self._absent >= ABSENT_BEFORE_DEAD:
                self._dead(str(error))
        except EngineSilent as error:
            self.why = str(error)
            if self.seen is not None:
                await self._busy_or_absent()
        except EngineRefused as error:
            self.why = str(error)

    async def _meet(self) -> None:
        if not await self._client.started():
            self.state = "starting"
            return
        seen = await self._ask()
        self.seen = seen
        self.generation += 1
        self.state = "ready"
        self.why = ""
        log.info("engine ready: SGLang %s, generation %d", seen.info.get("version"), self.generation)
        self._on_life(seen)
        self.load = await self._client.load()

    async def _ask(self) -> EngineSeen:
        info = await self._client.server_info()
        model = await self._client.model_info()
        paths = [path for path in ASKED_PATHS if await self._client.has(path)]
        return EngineSeen(info, str(model.get("weight_version") or "default"), frozenset(paths))

    async def _check(self) -> None:
        assert self.seen is not None
        self.load = await self._client.load()
        model = await self._client.model_info()
        self._checks += 1
        # Load and weights are told by the HTTP front alone; the rest is long, and the scheduler answers it.
        info = await self._client.server_info() if self._checks % ASK_ALL_EVERY == 0 else self.seen.info
        now = EngineSeen(info, str(model.get("weight_version") or "default"), self.seen.paths)
        if now.life != self.seen.life:
            self._dead("the server was started again")
            return
        self.seen = now
        self.state = "ready"
        self.why = ""

    async def _busy_or_absent(self) -> None:
        try:
            alive = await self._client.started()
        except (EngineAbsent, EngineSilent) as error:
            self._absent += 1
            self.why = str(error)
            if self._absent >= ABSENT_BEFORE_DEAD and isinstance(error, EngineAbsent):
                self._dead(str(error))
            return
        self.state = "busy" if alive else "starting"

    def _dead(self, why: str) -> None:
        if self.seen is not None:
            log.warning("engine dead: %s", why)
        self.state = "dead"
        self.why = why
        self.seen = None
        self.load = None
