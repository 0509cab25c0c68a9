"""Comments in an event stream while nothing else comes, for load balancers that cut silent connections.

Off by default: the first comment sends the headers, so from then on an error can only be an event of the
stream. Comments reset HTTP read timeouts; clients that time parsed events (LangChain: 120 s) do not count
them.
"""

import asyncio
from typing import Final

from heddle_gateway.asgi.client_exchange import ClientExchange

PING: Final = b": ping\n\n"
EVENT_STREAM: Final = b"content-type: text/event-stream; charset=utf-8\r\n"


class Pings:
    """Sends a comment every ``period_s`` until ``stop``; starts at once."""

    def __init__(self, exchange: ClientExchange, period_s: float) -> None:
        self._exchange = exchange
        self._period_s = period_s
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Call before anything else is sent. Nothing is sent any more when this returns."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            if self._exchange.status is None:
                await self._exchange.begin(200, EVENT_STREAM)
            await self._exchange.part(PING)
