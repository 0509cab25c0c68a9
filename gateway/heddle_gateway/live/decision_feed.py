"""What the core decides and is told, as it happens, for whoever looks on.

Invariants: nobody who decides waits for somebody who looks on; a slow onlooker misses the oldest events and
is told how many; with no onlooker nothing is built.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from heddle_contracts.planning import DecisionEvent, EventKind

CAPACITY: Final = 2_048
"""Events that wait for one onlooker."""
MOST_ONLOOKERS: Final = 32


class TooManyOnlookers(Exception):
    """No further subscription; the bound keeps one event from being copied without end."""


class Subscription:
    """One onlooker's events. ``missed`` counts those that were dropped since it was last read."""

    def __init__(self) -> None:
        self._events: deque[DecisionEvent] = deque(maxlen=CAPACITY)
        self._some = asyncio.Event()
        self._closed = False
        self.missed = 0

    def put(self, event: DecisionEvent) -> None:
        if len(self._events) == CAPACITY:
            self.missed += 1
        self._events.append(event)
        self._some.set()

    def close(self) -> None:
        self._closed = True
        self._some.set()

    async def take(self, timeout_s: float) -> list[DecisionEvent] | None:
        """What there is, after waiting for something for up to ``timeout_s``; None once the feed has
        ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return []
        if self._closed:
            return None
        self._some.clear()
        found = list(self._events)
        self._events.clear()
        return found


class DecisionFeed:
    """Publishes to its subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    @property
    def watched(self) -> bool:
        return bool(self._subscriptions)

    def publish(
        self, kind: EventKind, *, trajectory_id: str | None = None, worker: str | None = None, **facts: Any
    ) -> None:
        """Costs nothing but a look where nobody is looking on."""
        if not self._subscriptions:
            return
        event = DecisionEvent(
            at=time.time(), kind=kind, trajectory_id=trajectory_id, worker=worker, facts=facts
        )
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextmanager
    def subscription(self) -> Iterator[Subscription]:
        """Raises TooManyOnlookers."""
        if len(self._subscriptions) >= MOST_ONLOOKERS:
            raise TooManyOnlookers
        subscription = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Ends every stream, so that the process can end."""
        for subscription in self._subscriptions:
            subscription.close()
