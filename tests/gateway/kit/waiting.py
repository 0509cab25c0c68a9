"""Waiting for what has no event to wait on, bounded."""

import asyncio
from collections.abc import Callable

import pytest

WAIT_S = 10.0


async def wait_until(
    condition: Callable[[], bool], what: str = "condition", says: Callable[[], str] = str
) -> None:
    """``says``: what is known when it was in vain."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  what is waited for has no event to wait on
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"waited {WAIT_S:g} s in vain for: {what}\n{says()}".rstrip())
