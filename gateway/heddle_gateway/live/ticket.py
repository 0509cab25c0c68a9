"""A step's place in the core: what the core has decided about it, and how the step's task hears of it."""

import asyncio
from collections.abc import Callable

from heddle_gateway.live.decisions import Decision


class Ticket:
    """One live step. ``decision`` is the core's last word; None while the step is held.

    ``on_withdraw`` is called when the core takes the running attempt back because its worker is gone.
    """

    __slots__ = ("_waiter", "decision", "handle", "on_withdraw", "step")

    def __init__(self, step: int, handle: int, on_withdraw: Callable[[], None]) -> None:
        self.step = step
        self.handle = handle
        self.on_withdraw = on_withdraw
        self.decision: Decision | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def decided(self) -> Decision:
        """The core's decision; waits while the step is held. No suspension when the core answered at once."""
        while self.decision is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.decision

    def decide(self, decision: Decision) -> None:
        self.decision = decision
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def withdraw(self) -> None:
        """The running attempt is void; a step that is held or already decided anew is not concerned."""
        self.on_withdraw()
