"""Requests of one engine in threads, asked for in an order that is certain."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .workers import SLOTS, Answer, Worker, wait_until

NewTokens = Callable[[int], list[int]]


class Crowd:
    """Notes the order in which its requests end."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(16)
        self._lock = threading.Lock()
        self.ended: list[str] = []
        self.answers: dict[str, Future[Answer]] = {}

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ask(
        self,
        name: str,
        tokens: list[int],
        new: int,
        priority: int,
        rid: str | None = None,
        *,
        settled: bool = True,
    ) -> None:
        """Returns when the engine has the request. Whether it has is found by giving it its priority again,
        so not for one whose priority was set before it came (``settled``).
        """
        known = rid or uuid.uuid4().hex

        def run() -> Answer:
            # With logprobs SGLang computes a preempted request's decoded tokens again whatever the cache has.
            answer = self._worker.generate(tokens, new, priority=priority, rid=known, return_logprob=False)
            with self._lock:
                self.ended.append(name)
            return answer

        def there() -> bool:
            same = {"priorities": {known: priority}}
            said = self._worker.ask_shim("POST", "/shim/v1/priorities", same)
            return said["applied"] == 1 or self.answers[name].done()

        self.answers[name] = self._pool.submit(run)
        if settled:
            wait_until(there, f"{name} on the engine")

    def all(self) -> dict[str, Answer]:
        return {name: answer.result() for name, answer in self.answers.items()}


def fill(crowd: Crowd, worker: Worker, new_tokens: NewTokens, priority: int, new: int) -> None:
    """Takes all slots of the engine."""
    for slot in range(SLOTS):
        crowd.ask(f"blocker {slot}", new_tokens(24), new, priority)
    wait_until(lambda: worker.loads()["num_running_reqs"] == SLOTS, "all slots taken")
