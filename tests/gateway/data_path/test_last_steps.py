"""Steps that their client calls the last of a trajectory."""

from typing import Any

LAST = {"x-heddle-trajectory-id": "one", "x-heddle-trajectory-final": "1"}
GOING_ON = {"x-heddle-trajectory-id": "one"}


async def test_a_last_step_that_failed_may_come_again(new_gateway: Any, new_worker: Any) -> None:
    worker = await new_worker()
    gateway = await new_gateway(worker, policy={"max_attempts": 1})
    await gateway.chat("first", headers=GOING_ON)

    async def full(request: Any, line: Any) -> None:
        await line.answer(503, {"object": "error", "message": "The request queue is full.", "code": 503})

    async def well(request: Any, line: Any) -> None:
        await line.answer_chat()

    worker.script = full
    failed = await gateway.chat("last", headers=LAST)
    assert (failed.status_code, failed.headers["x-heddle-step"]) == (503, "1")
    worker.script = well
    again = await gateway.chat("last", headers={**LAST, "x-stainless-retry-count": "1"})
    assert (again.status_code, again.headers["x-heddle-step"]) == (200, "1")
    assert len(gateway.parts.driver.directory) == 0
    records = await gateway.records(3)
    assert [(one.step, one.outcome) for one in records] == [(0, "done"), (1, "rejected"), (1, "done")]
    shown = (await gateway.client.get("/admin/v1/trajectories/one")).json()["trajectory"]
    assert (shown["steps"], shown["phase"]) == (2, "finished")
