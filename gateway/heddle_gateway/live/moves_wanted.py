"""Moving KV, as the driver sees it: who carries the core's moves out, and the core's refusal of one."""

from typing import Protocol

from heddle_core import CancelMigration, Migrate

from heddle_gateway.live.directory import LiveTrajectory


class MoveRefused(ValueError):
    """The core does not move this trajectory's KV there; the message names the field and why."""


class MovesKv(Protocol):
    """Carries moves of KV out and reports each one's end (live.mover.Mover)."""

    def begin(self, action: Migrate, live: LiveTrajectory) -> None: ...
    def cancel(self, action: CancelMigration) -> None: ...
