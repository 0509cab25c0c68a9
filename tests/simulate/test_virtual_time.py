"""The loop with simulated time: order, exactness, sockets, and no waiting for what cannot come."""

import asyncio
import time

import pytest

from .virtual_time import Deadlock, run_in_virtual_time


def test_an_hour_passes_at_once_and_to_the_point() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []

        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)
            times.append(loop.time())

        await asyncio.gather(nap(3600.0), nap(0.000001), nap(7.25))
        return times

    began = time.monotonic()
    assert run_in_virtual_time(main()) == [0.000001, 7.25, 3600.0]
    assert time.monotonic() - began < 600


def test_a_cancelled_timer_does_not_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, lambda: None).cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.Event().wait()
        return loop.time()

    assert run_in_virtual_time(main()) == 1.5


def test_timers_of_one_moment_are_due_in_the_order_they_were_armed() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        for number in range(50):
            loop.call_at(1.0 if number % 3 else 2.0, fired.append, number)
        await asyncio.sleep(3.0)
        return fired

    fired = run_in_virtual_time(main())
    assert fired == sorted(range(50), key=lambda number: (number % 3 == 0, number))


def test_what_sockets_bring_is_served_before_time_moves() -> None:
    async def main() -> tuple[bytes, float]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(2.0)
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return line, asyncio.get_running_loop().time()

    line, now = run_in_virtual_time(main())
    assert (line, now) == (b"hello\n", 2.0)


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_in_virtual_time(main())
