"""The shim of one emulated worker: the same routes, migrations and transport as beside a real engine."""

from importlib.metadata import version
from typing import Final

from starlette.routing import Route

from heddle_shim.emulator.clock import Clock
from heddle_shim.emulator.shim_side import EmulatedEngineSide
from heddle_shim.transfer.migrations import Migrations
from heddle_shim.transfer.routes import MigrationRoutes
from heddle_shim.transfer.tcp import TcpTransport
from heddle_shim.transfer.tcp_receiver import TcpReceiver


class WorkerMigrations:
    """Moves from and to one worker. ``start`` before its routes are served, ``close`` after."""

    def __init__(self, side: EmulatedEngineSide, clock: Clock, seconds_per_token: float, host: str) -> None:
        """Pages arrive on a free port of ``host``."""
        self._receiver: Final = TcpReceiver(side, host)
        namespace = side.namespace()
        rate = None
        if namespace is not None and side.cannot_migrate() is None and (real := clock.simulated(1.0)) > 0:
            # Bytes on the wire stand for real KV, so the rate is that at which they are let through.
            layout = namespace.layout
            rate = layout.page_bytes / (layout.page_size * seconds_per_token) * real
        self.migrations: Final = Migrations(side, [TcpTransport()], bytes_per_second=rate)
        self.routes: Final[list[Route]] = MigrationRoutes(
            side, self.migrations, {self._receiver.name: self._receiver}, shim_version=version("heddle-shim")
        ).routes()

    async def start(self) -> None:
        """Listens for pages."""
        await self._receiver.start()

    async def close(self) -> None:
        """Ends all moves."""
        await self.migrations.close()
        await self._receiver.close()
