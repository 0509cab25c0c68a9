"""What outlives this process in Redis beside live trajectories: workers and plan, rollouts, a pause.

Part of the composition. A command of an operator is written there before it is answered: a leader that dies
a moment later has not taken it back. The answer says whether it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.kept import KEPT_HEADER, KEPT_IN_PROCESS, KEPT_IN_REDIS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.live.driver import Driver
from heddle_gateway.planning import Planning
from heddle_gateway.settings import Settings
from heddle_gateway.shared_fleet import SharedFleet, open_shared_fleet
from heddle_gateway.shared_pause import SharedPause, open_shared_pause
from heddle_gateway.shared_rollouts import SharedRollouts, open_shared_rollouts
from heddle_gateway.telemetry.live_mirror import LiveMirror

COMMANDS: Final = (
    "/admin/v1/",
    "/workers",
    "/add_worker",
    "/remove_worker",
    "/pause_generation",
    "/continue_generation",
)
"""Where operators' commands begin. Reports of shims, each a second, are none."""
REPORT: Final = "/report"


@dataclass(frozen=True, slots=True)
class Outliving:
    """All three, by the lease of one mirror."""

    fleet: SharedFleet
    rollouts: SharedRollouts
    pause: SharedPause

    async def start(self) -> None:
        await self.fleet.start()
        self.rollouts.start()
        self.pause.start()

    async def close(self) -> None:
        """Writes a last time: call it while the lease is held."""
        await self.fleet.close()
        await self.rollouts.close()
        await self.pause.close()

    async def saved(self) -> bool:
        """Returns when all that has changed is in Redis, or cannot be written for now (False)."""
        return all(await asyncio.gather(self.fleet.saved(), self.rollouts.saved(), self.pause.saved()))


def open_outliving(
    settings: Settings,
    fleet: Fleet,
    planning: Planning,
    driver: Driver,
    mirror: LiveMirror,
    is_alone: Callable[[], bool],
) -> Outliving:
    """For a gateway with a Redis, whose lease ``mirror`` holds; ``is_alone``: it decides without."""
    return Outliving(
        open_shared_fleet(settings, fleet, planning.keeper, mirror, is_alone),
        open_shared_rollouts(settings, planning.rollouts, driver, mirror),
        open_shared_pause(settings, driver, mirror),
    )


class KeptCommands:
    """Layer around the application: a command that was carried out is answered once it is kept.

    ``saved``: whether what has changed is in Redis, as soon as that is known.
    """

    def __init__(self, app: ASGIApp, saved: Callable[[], Awaitable[bool]]) -> None:
        self._app = app
        self._saved = saved

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, self._once_kept(send) if _is_command(scope) else send)

    def _once_kept(self, send: Send) -> Send:
        async def send_kept(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                where = KEPT_IN_REDIS if await self._saved() else KEPT_IN_PROCESS
                headers: list[Any] = [*message["headers"], (KEPT_HEADER.encode(), where.encode())]
                message = {**message, "headers": headers}
            await send(message)

        return send_kept


def _is_command(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return False
    path: str = scope["path"]
    return path.startswith(COMMANDS) and not path.endswith(REPORT)
