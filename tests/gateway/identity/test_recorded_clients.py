"""Real agent frameworks as they spoke through the gateway to an emulated engine, speaking again.

recorded_clients.json has what each sent and what it was answered; long texts are cut, alike in all requests.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_core import Answer, StreamTap, read_answer, scan_body
from heddle_gateway.dialects.dialect import BY_PATH
from heddle_gateway.identity import Identity, RequestFacts, TrajectoryBook, tenant_of

CLIENTS = json.loads((Path(__file__).parent / "recorded_clients.json").read_text())


class Speaking:
    """Plays exchanges into one book."""

    def __init__(self) -> None:
        self.book = TrajectoryBook()
        self.now = 0.0

    def ask(self, exchange: Any) -> Identity:
        self.now += 1.0
        body = json.dumps(exchange["body"], ensure_ascii=False).encode()
        scan = scan_body(body, BY_PATH[exchange["path"]].name)
        headers = exchange["headers"]
        facts = RequestFacts(exchange["path"], headers, {}, scan, tenant_of(headers), self.now, body)
        who = self.book.resolve(facts)
        self.book.step_started(who)
        return who

    def answer(self, who: Identity, exchange: Any) -> None:
        self.now += 1.0
        self.book.step_ended(who, Outcome.DONE, answer_of(exchange), self.now)


def answer_of(exchange: Any) -> Answer:
    dialect = BY_PATH[exchange["path"]].name
    said = exchange["answer"].encode()
    if not exchange["answer_type"].startswith("text/event-stream"):
        return read_answer(said, dialect)
    tap = StreamTap(dialect, hide_usage=False)
    tap.feed(said)
    tap.finish()
    return tap.answer()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client["client"])
def test_an_agent_is_one_trajectory_and_its_steps_are_counted(client: Any) -> None:
    speaking = Speaking()
    steps = []
    for exchange in client["exchanges"]:
        who = speaking.ask(exchange)
        speaking.answer(who, exchange)
        steps.append(who)
    assert len(steps) > 1
    assert {who.trajectory_id for who in steps} == {steps[0].trajectory_id}
    assert [who.step for who in steps] == list(range(len(steps)))
    assert [who.segment for who in steps] == [0] * len(steps)
    assert not any(who.retry_of_step for who in steps)


def test_agents_that_run_at_once_are_told_apart() -> None:
    speaking = Speaking()
    found: dict[str, list[Identity]] = {}
    longest = max(len(client["exchanges"]) for client in CLIENTS)
    for at in range(longest):
        running = [client for client in CLIENTS if at < len(client["exchanges"])]
        asked = [(speaking.ask(client["exchanges"][at]), client) for client in running]
        for who, client in reversed(asked):
            speaking.answer(who, client["exchanges"][at])
            found.setdefault(client["client"], []).append(who)
    ids = [{who.trajectory_id for who in steps} for steps in found.values()]
    assert all(len(one) == 1 for one in ids)
    assert len(set.union(*ids)) == len(CLIENTS)
    assert all([who.step for who in steps] == list(range(len(steps))) for steps in found.values())
