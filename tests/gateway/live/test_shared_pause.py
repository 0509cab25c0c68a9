"""A pause that was ended just before the gateway stops is not taken up by the next one. In simulated time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from heddle_gateway import shared_pause
from heddle_gateway.settings import load_settings
from heddle_gateway.shared_pause import SharedPause

from tests.simulate.virtual_time import run_in_virtual_time


def test_what_changed_during_the_last_write_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bool] = []

    class Store:
        def __init__(self, url: str, **said: Any) -> None:
            pass

        async def save(self, epoch: int, *, paused: bool) -> None:
            await asyncio.sleep(0.1)
            written.append(paused)

        async def close(self) -> None:
            pass

    monkeypatch.setattr(shared_pause, "RedisPause", Store)

    async def main() -> None:
        driver: Any = SimpleNamespace(is_paused=True)
        shared = SharedPause(load_settings(workers=[]), "redis://nowhere", driver, lambda: 1)
        shared.start()
        await asyncio.sleep(0.05)
        driver.is_paused = False
        shared.changed()
        await shared.close()
        assert written == [True, False]

    run_in_virtual_time(main())
