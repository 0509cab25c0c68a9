"""One cancellation with a reason: at any await, exactly once, and never somebody else's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from heddle_gateway.asgi.interrupts import HangUps, Interrupted, Interrupts, Reason

Until = Callable[..., Awaitable[None]]


async def wait_inside(interrupts: Interrupts) -> None:
    with interrupts:
        await asyncio.Event().wait()


async def test_a_hang_up_interrupts_a_wait_with_its_reason() -> None:
    hang_ups = HangUps()
    interrupts = Interrupts(no_receive, hang_ups)
    asyncio.get_running_loop().call_soon(hang_ups.cut)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.CLIENT_LEFT
    await asyncio.sleep(0)  # the task itself is not left cancelled


async def test_a_hang_up_before_the_first_wait_is_raised_by_it() -> None:
    hang_ups = HangUps()
    interrupts = Interrupts(no_receive, hang_ups)
    hang_ups.cut()
    await asyncio.sleep(0)  # outside of `with` nothing is interrupted
    with pytest.raises(Interrupted), interrupts:
        pytest.fail("entered")


async def test_a_connection_that_is_cut_already_counts() -> None:
    hang_ups = HangUps()
    hang_ups.cut()
    interrupts = Interrupts(no_receive, hang_ups)
    with pytest.raises(Interrupted), interrupts:
        pytest.fail("entered")


async def test_without_the_servers_help_receive_is_listened_to() -> None:
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    interrupts = Interrupts(receive)
    asyncio.get_running_loop().call_soon(gone.set)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.CLIENT_LEFT


async def test_a_lost_worker_is_forgotten_for_the_next_attempt() -> None:
    interrupts = Interrupts(no_receive, HangUps())
    asyncio.get_running_loop().call_soon(interrupts.worker_gone)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.WORKER_GONE
    assert interrupts.is_worker_gone
    interrupts.forget_worker()
    with interrupts:
        await asyncio.sleep(0)


async def test_a_client_that_left_weighs_more_than_a_lost_worker() -> None:
    hang_ups = HangUps()
    interrupts = Interrupts(no_receive, hang_ups)

    def both() -> None:
        interrupts.worker_gone()
        hang_ups.cut()
        interrupts.worker_gone()

    asyncio.get_running_loop().call_soon(both)
    with pytest.raises(Interrupted) as interrupted:
        await wait_inside(interrupts)
    assert interrupted.value.reason is Reason.CLIENT_LEFT


async def test_somebody_elses_cancellation_passes_through() -> None:
    entered = asyncio.Event()

    async def step() -> None:
        interrupts = Interrupts(no_receive, HangUps())
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
    hang_ups = HangUps()

    async def step() -> None:
        interrupts = Interrupts(no_receive, hang_ups)
        with interrupts:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await entered.wait()
    hang_ups.cut()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_one_hears_nothing_any_more() -> None:
    hang_ups = HangUps()
    interrupts = Interrupts(no_receive, hang_ups)
    interrupts.close()
    assert hang_ups.calls == set()


async def no_receive() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}
