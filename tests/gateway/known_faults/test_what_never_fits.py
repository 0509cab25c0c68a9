"""A prompt that no worker can hold goes out at once for the engine to refuse by itself; nobody waits."""

import asyncio
from typing import Any


async def test_a_prompt_that_fits_nowhere_is_refused_by_the_engine_at_once(
    new_gateway: Any, worker: Any, until: Any
) -> None:
    """The fake worker has 100,000 tokens of KV. Another trajectory holds most of it."""
    words = "The input (500000 tokens) is longer than the model's context length (100000 tokens)."
    hold = asyncio.Event()

    async def script(request: Any, line: Any) -> None:
        if len(request.body) > 1_000_000:
            await line.answer(
                400, {"object": "error", "message": words, "type": "BadRequestError", "code": 400}
            )
            return
        if "first" in request.json()["messages"][0]["content"]:
            await hold.wait()
        await line.answer_chat()

    worker.script = script
    gateway = await new_gateway(worker, policy={"admission": "working_set"})
    first = asyncio.create_task(gateway.chat("first " + "x" * 240_000, path="/t/first/v1/chat/completions"))
    await until(lambda: worker.received, "the first step at the worker")
    async with asyncio.timeout(5):
        refused = await gateway.chat("y" * 2_000_000, path="/t/huge/v1/chat/completions")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, words)
    # What was refused holds no KV, so the next one is not held for it.
    async with asyncio.timeout(5):
        after = await gateway.chat("z", path="/t/after/v1/chat/completions")
    assert after.status_code == 200
    hold.set()
    assert (await first).status_code == 200
