import asyncio

import pytest
from heddle_gateway.supervision import Background, Backoff, Supervisor

QUICK = Backoff(first=0.001, longest=0.01)


async def test_a_failing_task_is_started_again_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    done = asyncio.Event()

    async def fails_twice() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise KeyError("unexpected")
        done.set()

    supervisor = Supervisor(QUICK)
    supervisor.start("work", fails_twice)
    await asyncio.wait_for(done.wait(), 5)
    assert (runs, supervisor.restarts) == (3, 2)
    assert caplog.text.count("background task work failed, starting it again") == 2
    assert "KeyError: 'unexpected'" in caplog.text
    await supervisor.close()
    assert supervisor.restarts == 2, "also of tasks that are over"


async def test_a_task_that_returns_is_done_and_frees_its_name() -> None:
    supervisor = Supervisor(QUICK)
    ended = asyncio.Event()

    async def once() -> None:
        ended.set()

    supervisor.start("work", once)
    await asyncio.wait_for(ended.wait(), 5)
    await supervisor.stop("work")
    assert supervisor.names() == []
    supervisor.start("work", once)
    await supervisor.close()


async def test_stopping_one_task_leaves_the_others_running() -> None:
    supervisor = Supervisor(QUICK)
    cancelled = []

    def forever(name: str) -> None:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(name)

        supervisor.start(name, wait)

    forever("a")
    forever("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await supervisor.stop("a")
    assert (supervisor.names(), cancelled) == (["b"], ["a"])
    await supervisor.close()
    assert cancelled == ["a", "b"]
    assert supervisor.restarts == 0


async def test_one_name_holds_one_task() -> None:
    supervisor = Supervisor(QUICK)

    async def wait() -> None:
        await asyncio.Event().wait()

    supervisor.start("work", wait)
    with pytest.raises(ValueError, match="work"):
        supervisor.start("work", wait)
    await supervisor.close()


async def test_who_ends_by_itself_is_waited_for_and_who_is_late_is_stopped() -> None:
    enough, cancelled = asyncio.Event(), asyncio.Event()

    async def until_enough() -> None:
        await enough.wait()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    prompt, late = Background("prompt", until_enough), Background("late", never)
    prompt.start()
    late.start()
    enough.set()
    assert await prompt.ended(5.0)
    assert not await late.ended(0.001)
    assert cancelled.is_set()
    assert await Background("never started", never).ended(0.0)


async def test_a_task_may_stop_itself() -> None:
    went_on = asyncio.Event()

    async def stops_itself() -> None:
        await task.stop()
        went_on.set()

    task = Background("itself", stops_itself)
    task.start()
    assert await task.ended(5.0)
    assert went_on.is_set()


def test_the_back_off_doubles_to_its_bound() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
