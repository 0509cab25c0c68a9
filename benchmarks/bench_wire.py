"""What reading requests and answers costs, as Python sees it, beside ``json.loads`` of the same bytes.

    python benchmarks/bench_wire.py [--json OUT]

Microseconds a call: the best of several rounds, so that a busy machine disturbs less.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_contracts.steps import Outcome
from heddle_core import StreamTap, read_answer, scan_body, splice
from heddle_gateway.identity import RequestFacts, TrajectoryBook

RID = "0123456789abcdef0123456789abcdef"
PATH = "/v1/chat/completions"
HEADERS = {
    "host": "gateway",
    "accept": "application/json",
    "user-agent": "OpenAI/Python",
    "content-type": "application/json",
    "authorization": "Bearer key",
    "x-stainless-retry-count": "0",
}
LINE = 'def read(self, size: int) -> bytes:  # returns "size" bytes, or fewer at the end\n'


def conversation(turns: int, lines: int) -> list[dict[str, Any]]:
    """A coding agent's history: each turn a tool call and its output of ``lines`` lines."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent.\n" * 10},
        {"role": "user", "content": "Mend the parser."},
    ]
    for turn in range(turns):
        call = {"name": "bash", "arguments": json.dumps({"command": f"sed -n {turn}p parser.py"})}
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": LINE * lines})
    return messages


def body_of(messages: list[dict[str, Any]]) -> bytes:
    body = {"model": "m", "messages": messages, "stream": True, "temperature": 1.0, "max_tokens": 4096}
    return json.dumps(body).encode()


def best(call: Callable[[], object], rounds: int = 15, budget_s: float = 0.02) -> float:
    """Microseconds a call, in the fastest of ``rounds``."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    count = max(1, int(budget_s / once))
    fastest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        fastest = min(fastest, (time.perf_counter() - start) / count)
    return fastest * 1e6


def request_costs(name: str, body: bytes) -> dict[str, float]:
    scan = scan_body(body, "chat")
    return {
        f"{name} json.loads": best(lambda: json.loads(body)),
        f"{name} scan": best(lambda: scan_body(body, "chat")),
        f"{name} splice": best(lambda: splice(body, scan, rid=RID, priority=3, ask_usage=True)),
    }


def stream_costs() -> dict[str, float]:
    delta = {"role": None, "content": " word", "reasoning_content": None, "tool_calls": None}
    chunk = {
        "id": RID,
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}
        ],
        "usage": None,
    }
    event = f"data: {json.dumps(chunk)}\n\n".encode()
    tap = StreamTap("chat", hide_usage=True)
    said = {"choices": [{"message": {"content": LINE * 10}}], "usage": {"prompt_tokens": 1}}
    answer = json.dumps(said).encode()
    return {
        f"chunk of {len(event)} B json.loads": best(lambda: json.loads(event[6:])),
        f"chunk of {len(event)} B tap": best(lambda: tap.feed(event)),
        f"answer of {len(answer)} B read": best(lambda: read_answer(answer, "chat")),
        "tap made and asked": best(lambda: StreamTap("chat", hide_usage=True).answer()),
    }


def identity_costs() -> dict[str, float]:
    messages = conversation(9, 1)
    known = scan_body(body_of(messages[:-2]), "chat")
    following = scan_body(body_of(messages), "chat")
    answer = read_answer(json.dumps({"choices": [{"message": messages[-2]}]}).encode(), "chat")
    book = TrajectoryBook()
    for number in range(5_000):
        # Other trajectories, so that the tables are not toys.
        other = scan_body(body_of([{"role": "user", "content": f"task {number}"}]), "chat")
        book.step_started(book.resolve(RequestFacts(PATH, HEADERS, {}, other, "t", 0.0)))
    first = book.resolve(RequestFacts(PATH, HEADERS, {}, known, "t", 1.0))
    book.step_started(first)
    book.step_ended(first, Outcome.DONE, answer, 2.0)
    facts = RequestFacts(PATH, HEADERS, {}, following, "t", 3.0)
    assert book.resolve(facts).source == "history"
    named = RequestFacts(PATH, {**HEADERS, "x-session-id": "s"}, {}, following, "t", 3.0)

    def whole() -> None:
        who = book.resolve(named)
        book.step_started(who)
        book.step_ended(who, Outcome.DONE, answer, 4.0)

    return {
        "identity of 20 messages": best(lambda: book.resolve(facts)),
        "identity by header": best(lambda: book.resolve(named)),
        "identity by header, started and ended": best(whole),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    costs: dict[str, float] = {}
    for turns, lines in ((10, 2), (20, 55)):
        body = body_of(conversation(turns, lines))
        costs |= request_costs(f"request of {len(body) / 1000:.0f} kB", body)
    costs |= stream_costs() | identity_costs()
    for name, cost in costs.items():
        print(f"{cost:10.2f} us  {name}")
    if arguments.json:
        arguments.json.write_text(json.dumps(costs, indent=2) + "\n")


if __name__ == "__main__":
    main()
