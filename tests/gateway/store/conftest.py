"""An empty history database of either kind."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from heddle_gateway.store.engine import open_engine
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """What holds on one database holds on the other."""
    location = str(tmp_path / "history.db")
    if request.param == "postgresql":
        location = request.getfixturevalue("postgresql").new_database()
    engine = open_engine(location)
    yield engine
    await engine.dispose()
