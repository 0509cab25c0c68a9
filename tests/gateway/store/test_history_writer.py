"""The history queue: bounded, never in the way, and every record accounted for."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any

from heddle_contracts.admin import WriterState
from heddle_gateway.telemetry.history import HistoryLimits, HistoryWriter

from .scripted_store import QUICK, ScriptedStore, WriteResult, accounted, step, until


async def test_records_arrive_in_order_and_in_batches() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(batch=10, linger_s=0.005))
    await writer.start()
    for number in range(25):
        writer.put(step(number))
    assert await writer.flush(5)
    assert store.numbers == list(range(25))
    assert [len(batch) for batch in store.batches] == [10, 10, 5]
    assert writer.stats().written == 25
    await writer.close()


async def test_put_needs_no_running_loop_turn_and_keeps_the_oldest_when_full() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(capacity=8, batch=4, **QUICK))
    for number in range(20):
        writer.put(step(number))
    assert (writer.stats().queued, writer.stats().dropped) == (8, 12)
    await writer.start()
    assert await writer.flush(5)
    assert store.numbers == list(range(8))
    assert accounted(writer.stats())
    await writer.close()


async def test_what_is_being_written_takes_room_too() -> None:
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, HistoryLimits(capacity=8, batch=4, **QUICK))
    await writer.start()
    for number in range(8):
        writer.put(step(number))
    await store.tried.wait()
    for number in range(8, 20):
        writer.put(step(number))
    assert (writer.stats().queued, writer.stats().dropped) == (8, 12)
    store.open.set()
    assert await writer.flush(5)
    assert store.numbers == list(range(8))
    await writer.close()


async def test_an_outage_costs_nothing_that_fits_the_queue() -> None:
    down = True
    store = ScriptedStore(lambda _: "unavailable" if down else "written")
    writer = HistoryWriter(store, HistoryLimits(capacity=100, batch=10, **QUICK))
    await writer.start()
    for number in range(50):
        writer.put(step(number))
    await until(lambda: store.tries >= 5)
    stats = writer.stats()
    assert (stats.state, stats.last_error, stats.queued) == (WriterState.BACKING_OFF, "as told", 50)
    assert stats.failed_writes >= 4
    down = False
    assert await writer.flush(5)
    assert store.numbers == list(range(50))
    assert writer.stats().state is WriterState.IDLE
    await writer.close()


def test_tries_in_an_outage_become_rarer_up_to_a_bound() -> None:
    delays = HistoryLimits(first_retry_s=0.1, longest_retry_s=5.0).retry_delays()
    assert list(islice(delays, 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_one_record_that_is_refused_costs_no_other() -> None:
    store = ScriptedStore(lambda steps: "refused" if any(one.step == 13 for one in steps) else "written")
    writer = HistoryWriter(store, HistoryLimits(batch=32, **QUICK))
    await writer.start()
    for number in range(32):
        writer.put(step(number))
    assert await writer.flush(5)
    assert sorted(store.numbers) == [number for number in range(32) if number != 13]
    assert (writer.stats().refused, writer.stats().written) == (1, 31)
    assert accounted(writer.stats())
    await writer.close()


async def test_a_defect_in_the_store_does_not_end_history() -> None:
    def broken(steps: Sequence[Any]) -> WriteResult:
        if steps[0].step == 0:
            raise RuntimeError("a defect")
        return "written"

    store = ScriptedStore(broken)
    writer = HistoryWriter(store, HistoryLimits(batch=1, **QUICK))
    await writer.start()
    writer.put(step(0))
    writer.put(step(1))
    assert await writer.flush(5)
    assert store.numbers == [1]
    stats = writer.stats()
    assert (stats.refused, stats.written, stats.last_error) == (1, 1, "RuntimeError('a defect')")
    await writer.close()


async def test_closing_writes_what_is_queued() -> None:
    store = ScriptedStore()
    writer = HistoryWriter(store, HistoryLimits(batch=4, linger_s=30))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await writer.close(5)
    assert store.numbers == list(range(10))
    writer.put(step(99))
    stats = writer.stats()
    assert (stats.state, stats.dropped) == (WriterState.CLOSED, 1)
    assert accounted(stats)


async def test_closing_in_an_outage_is_quick_and_counts_the_loss() -> None:
    store = ScriptedStore(lambda _: "unavailable")
    writer = HistoryWriter(store, HistoryLimits(batch=4, linger_s=0.0, first_retry_s=60, longest_retry_s=60))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await store.tried.wait()
    async with asyncio.timeout(2):
        await writer.close(30)
    assert (writer.stats().dropped, writer.stats().queued) == (10, 0)
    assert accounted(writer.stats())


async def test_closing_does_not_wait_for_a_store_that_hangs() -> None:
    store = ScriptedStore()
    store.open.clear()
    writer = HistoryWriter(store, HistoryLimits(batch=4, **QUICK))
    await writer.start()
    for number in range(10):
        writer.put(step(number))
    await store.tried.wait()
    async with asyncio.timeout(2):
        await writer.close(0.05)
    assert writer.stats().dropped == 10
    assert accounted(writer.stats())
