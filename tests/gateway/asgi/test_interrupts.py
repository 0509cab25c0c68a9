"""One cancellation with a reason: at any await, exactly once, and never somebody else's."""

import asyncio
from collections.abc import Callable

import pytest
from heddle_gateway.asgi.interrupts import Interrupted, Interrupts, Reason


class Line:
    """A client's line, as far as interrupts see it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.disconnected = False
        self.on_cut: Callable[[], None] | None = None

    def cut(self) -> None:
        self.disconnected = True
        if self.on_cut is not None:
            self.on_cut()


async def wait_inside(interrupts: Interrupts) -> None:
    with interrupts:
        await asyncio.Event().wait()


async def test_a_hang_up_interrupts_a_wait_with_its_reason() -> None:
    line = Line()
    interrupts = Interrupts(line)
    asyncio.get_running_loop().call_soon(line.cut)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.CLIENT_LEFT
    await asyncio.sleep(0)  # the task itself is not left cancelled


async def test_a_hang_up_before_the_first_wait_is_raised_by_it() -> None:
    line = Line()
    interrupts = Interrupts(line)
    line.cut()
    await asyncio.sleep(0)  # outside of `with` nothing is interrupted
    with pytest.raises(Interrupted), interrupts:
        pytest.fail("entered")


async def test_a_connection_that_is_cut_already_counts() -> None:
    line = Line()
    line.cut()
    interrupts = Interrupts(line)
    with pytest.raises(Interrupted), interrupts:
        pytest.fail("entered")


async def test_a_lost_worker_is_forgotten_for_the_next_attempt() -> None:
    interrupts = Interrupts(Line())
    asyncio.get_running_loop().call_soon(interrupts.worker_gone)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.WORKER_GONE
    assert interrupts.is_worker_gone
    interrupts.forget_worker()
    with interrupts:
        await asyncio.sleep(0)


async def test_a_client_that_left_weighs_more_than_a_lost_worker() -> None:
    line = Line()
    interrupts = Interrupts(line)

    def both() -> None:
        interrupts.worker_gone()
        line.cut()
        interrupts.worker_gone()

    asyncio.get_running_loop().call_soon(both)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.CLIENT_LEFT


async def test_somebody_elses_cancellation_passes_through() -> None:
    entered = asyncio.Event()

    async def step() -> None:
        interrupts = Interrupts(Line())
        with interrupts:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_when_both_cancel_the_other_one_goes_first() -> None:
    entered = asyncio.Event()
    lines: list[Line] = []

    async def step() -> None:
        lines.append(Line())
        interrupts = Interrupts(lines[0])
        with interrupts:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await entered.wait()
    lines[0].cut()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_one_hears_nothing_any_more() -> None:
    line = Line()
    interrupts = Interrupts(line)
    interrupts.close()
    line.cut()
    with interrupts:
        await asyncio.sleep(0)
