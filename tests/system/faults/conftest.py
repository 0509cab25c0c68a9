"""Clusters that a test may break: real Redis and PostgreSQL, and every process killed, stopped or cut off."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Parts

from .cluster import Cluster


@pytest.fixture
async def new_cluster(
    parts: Parts, tmp_path: Path, redis_server: Any, postgresql: Any
) -> AsyncIterator[Callable[..., Cluster]]:
    """``new_cluster(**fields)``: not started. Its stores are shared with other tests, its keys are not."""
    async with AsyncExitStack() as stack:

        def make(**fields: Any) -> Cluster:
            given = {"redis": redis_server, "postgresql": postgresql} | fields
            return Cluster(parts, stack, tmp_path, **given)

        yield make


@pytest.fixture
def faketime() -> str:
    """The library that shows a process another wall clock."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is not installed: run .ci/services"
    return str(found[0])
