"""Order and preemption on a real SGLang with two slots; the gateway's order is the engine's."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from .crowd import Crowd, fill
from .workers import SLOTS, Worker, client, gateway, wait_until

NewTokens = Callable[[int], list[int]]

OUTLASTS = 2000
"""Tokens that an engine decodes for much longer than it takes to queue some requests behind them."""


def test_of_those_that_wait_the_higher_priority_goes_first(worker_a: Worker, new_tokens: NewTokens) -> None:
    with Crowd(worker_a) as crowd:
        fill(crowd, worker_a, new_tokens, 300, OUTLASTS)
        for priority in (10, 40, 20, 50, 30):
            crowd.ask(f"{priority}", new_tokens(16), 40, priority)
        crowd.all()
    waited = [name for name in crowd.ended if not name.startswith("blocker")]
    # Two slots: of two neighbours in the order either may end first.
    places = [waited.index(str(priority)) for priority in (50, 40, 30, 20, 10)]
    assert all(abs(place - rank) <= 1 for rank, place in enumerate(places)), waited


def test_a_much_higher_priority_preempts_and_a_slightly_higher_waits(
    worker_a: Worker, new_tokens: NewTokens
) -> None:
    with Crowd(worker_a) as crowd:
        fill(crowd, worker_a, new_tokens, 20, OUTLASTS)
        crowd.ask("slightly", new_tokens(16), 8, 25)
        crowd.ask("much", new_tokens(16), 8, 100)
        answers = crowd.all()
    assert crowd.ended[0] == "much"
    retracted = [answers[f"blocker {slot}"].meta["num_retractions"] for slot in range(SLOTS)]
    assert sorted(retracted) == [0, 1]
    assert answers["slightly"].meta["num_retractions"] == 0


def test_what_a_preempted_request_had_decoded_is_not_computed_again(
    worker_a: Worker, new_tokens: NewTokens
) -> None:
    prompts = [new_tokens(24), new_tokens(24)]
    with Crowd(worker_a) as crowd:
        for slot, prompt in enumerate(prompts):
            crowd.ask(f"blocker {slot}", prompt, 900, 20)
        wait_until(lambda: worker_a.loads()["num_used_tokens"] > 400, "the blockers to have decoded")
        uncached = worker_a.loads()["total_prefill_uncached_tokens"]
        crowd.ask("urgent", new_tokens(16), 4, 100)
        answers = crowd.all()
        computed = worker_a.loads()["total_prefill_uncached_tokens"] - uncached
    [victim] = [slot for slot in range(SLOTS) if answers[f"blocker {slot}"].meta["num_retractions"]]
    # The urgent one's 16, and of the victim no more than a page and the step that was in flight.
    assert computed <= 16 + 2 * 16
    wait_until(worker_a.is_idle, "an idle engine")
    alone = worker_a.generate(prompts[victim], 900, return_logprob=False)
    assert alone.output == answers[f"blocker {victim}"].output


def test_the_shim_changes_the_priority_of_what_waits_or_is_still_to_come(
    worker_a: Worker, new_tokens: NewTokens
) -> None:
    low, coming = uuid.uuid4().hex, uuid.uuid4().hex
    with Crowd(worker_a) as crowd:
        fill(crowd, worker_a, new_tokens, 300, OUTLASTS)
        crowd.ask("low", new_tokens(16), 40, 10, low)
        crowd.ask("high", new_tokens(16), 40, 40)
        said = worker_a.ask_shim("POST", "/shim/v1/priorities", {"priorities": {low: 60, coming: 90}})
        assert said == {"applied": 1, "remembered": 1}
        crowd.ask("middle", new_tokens(16), 40, 30)
        crowd.ask("coming", new_tokens(16), 40, 5, coming, settled=False)
        crowd.all()
    waited = [name for name in crowd.ended if not name.startswith("blocker")]
    assert set(waited[:2]) == {"low", "coming"}, waited
    assert waited[-1] == "middle" or waited[-2] == "middle"


def test_a_priority_that_cannot_be_read_is_refused_by_name(worker_a: Worker) -> None:
    with client(worker_a.shim_url) as http:
        refused = http.post("/shim/v1/priorities", json={"priorities": {"x": "soon"}})
    assert refused.status_code == 422
    assert refused.json()["field"] == "priorities.x"


def test_the_gateways_order_is_the_engines(worker_a: Worker, tmp_path: Path) -> None:
    """Longest first: who is expected to go on for longer overtakes, over the gateway and on the engine."""
    ended: list[str] = []
    lock = threading.Lock()

    def ask(http: httpx.Client, trajectory: str, new: int) -> None:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"{trajectory} import os"}],
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = http.post("/v1/chat/completions", json=body, headers={"x-heddle-trajectory-id": trajectory})
        assert answer.status_code == 200, answer.text
        with lock:
            ended.append(trajectory)

    with gateway(tmp_path, "--worker", worker_a.url, "--order", "longest_first") as http:
        wait_until(lambda: http.get("/ready").json()["workers"]["active"] == 1, "the worker in service")
        # The two longest fill the slots; of the others the one that was asked for last is the next longest.
        announced = http.post("/admin/v1/rollouts", json={"lengths": [60000, 60000, 20, 900, 20000]})
        assert announced.status_code == 201, announced.text
        first, second, short, middle, long = (
            one["trajectory_id"] for one in announced.json()["trajectories"]
        )
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(ask, http, one, OUTLASTS) for one in (first, second)]
            wait_until(lambda: worker_a.loads()["num_running_reqs"] == SLOTS, "both slots taken")
            running += [pool.submit(ask, http, one, 24) for one in (short, middle, long)]
            for one in running:
                one.result()
    assert ended[0] in {first, second}, "both slots were taken until then"
    # Two slots: who starts beside another may end before it; the other of the first two began a little later.
    assert ended.index(long) < ended.index(short)
