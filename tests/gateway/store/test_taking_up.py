"""What a new process takes up of the history."""

import time
from collections.abc import AsyncIterator
from typing import Any

from heddle_contracts.admin import TrajectorySummary
from heddle_gateway.app import take_up_the_past
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.store.engine import StoreError


class BreakingHistory:
    """Gives one page, and then the database is away."""

    def __init__(self) -> None:
        self.asked = 0

    async def recent(self, since: float, limit: int) -> AsyncIterator[list[TrajectorySummary]]:
        self.asked = limit
        now = time.time()
        yield [
            TrajectorySummary(
                trajectory_id=f"t{number}",
                tenant="",
                source="header",
                phase="in_tool_gap",
                steps=5,
                outcomes={},
                first_seen=now - 9.0,
                last_seen=now - number,
            )
            for number in range(3)
        ]
        raise StoreError("the database went away")


async def test_what_has_come_is_taken_up_and_all_that_is_remembered_is_asked_for() -> None:
    past: Any = BreakingHistory()
    book = TrajectoryBook(capacity=100)
    await take_up_the_past(past, book, 123_456)
    assert len(book) == 3
    assert past.asked == 123_456
