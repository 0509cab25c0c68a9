"""Asking one worker must not cost more the more workers there are: at 500 the event loop did nothing else."""

import time
from typing import Any

from heddle_gateway.fleet.asking import Asking, new_admin_client

WORKERS = 300
ASKED = 30


async def test_a_question_costs_the_same_beside_many_workers(new_worker: Any) -> None:
    urls = [(await new_worker()).url for _ in range(WORKERS)]
    async with new_admin_client() as client:

        async def seconds_of_questions() -> float:
            asking = Asking(client, urls[0], None, 10.0)
            start = time.perf_counter()
            for _ in range(ASKED):
                await asking.get_json("/server_info")
            return time.perf_counter() - start

        await seconds_of_questions()
        alone = min([await seconds_of_questions() for _ in range(3)])
        for url in urls:
            await Asking(client, url, None, 10.0).get_json("/server_info")
        beside = min([await seconds_of_questions() for _ in range(3)])
    # With one pool for all it is ten times as much and more.
    assert beside < 5 * alone


async def test_closing_the_client_leaves_no_connection(new_worker: Any, until: Any) -> None:
    workers = [await new_worker() for _ in range(3)]
    async with new_admin_client() as client:
        for worker in workers:
            await Asking(client, worker.url, None, 10.0).get_json("/server_info")
        assert all(worker.open_lines == 1 for worker in workers)
    await until(lambda: not any(worker.open_lines for worker in workers), "all connections to be closed")
