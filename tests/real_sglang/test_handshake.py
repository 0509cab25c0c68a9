"""What a shim finds out about a real SGLang, and tells of it."""

from collections.abc import Callable
from typing import Any

from .workers import PAGE, SLOTS, Worker, wait_until

NewTokens = Callable[[int], list[int]]


def test_the_handshake_says_what_the_engine_is(worker_a: Worker) -> None:
    said = worker_a.handshake()
    engine = said["engine"]
    assert said["cannot_migrate"] is None
    assert (engine["kind"], engine["version"], engine["model"]) == ("sglang", "0.5.23", "tiny")
    assert (engine["tp_size"], engine["pp_size"], engine["dp_size"]) == (1, 1, 1)
    assert (engine["page_size"], engine["kv_tokens"], engine["slots"]) == (PAGE, 24576, SLOTS)
    layout = said["namespace"]["layout"]
    assert (layout["dtype"], layout["layers"], layout["kv_heads"], layout["head_dim"]) == (
        "float32",
        2,
        2,
        32,
    )
    assert layout["order"] == "layer_first"
    found = set(engine["features"])
    assert {"priority", "kv_events", "page_store", "abort_request", "pause_generation"} <= found
    assert {"set_priority", "warm", "keep_decoded_kv", "history"} <= found


def test_two_workers_of_one_model_have_one_namespace(worker_a: Worker, worker_b: Worker) -> None:
    one, other = worker_a.handshake(), worker_b.handshake()
    assert one["namespace"] == other["namespace"]
    assert one["instance"] != other["instance"]


def test_reports_tell_load_hits_and_throughput(worker_a: Worker, new_tokens: NewTokens) -> None:
    tokens = new_tokens(320)
    worker_a.generate(tokens, 1)

    # Both are of the last moments: a report a second later may tell neither.
    report: dict[str, Any] = {}

    def told() -> bool:
        again = worker_a.generate(tokens, 24)
        assert again.cached == 304  # all full pages but the last, of which a token must be run
        report.update(worker_a.report())
        return bool(report["cache_hit_rate"] and report["output_tokens_s"])

    wait_until(told, "a report with hit rate and throughput")
    assert report["engine"] == "ready"
    assert report["kv_tokens"] == 24576
    assert 0 < report["cache_hit_rate"] <= 1
    assert report["running"] is not None


def test_events_and_store_tell_where_a_prefix_lies(worker_a: Worker, new_tokens: NewTokens) -> None:
    tokens = new_tokens(20 * PAGE + 3)
    assert worker_a.residency(tokens)["device"] == 0
    answer = worker_a.generate(tokens, 2 * PAGE)
    pages = answer.full_pages // PAGE

    def everywhere() -> bool:
        lies = worker_a.residency(answer.tokens)
        return (lies["device"], lies["host"], lies["store"]) == (pages, pages, pages)

    wait_until(everywhere, f"all {pages} pages in device, host and store")
    # Of another prefix that begins alike, only what is alike.
    assert worker_a.residency([*tokens[: 5 * PAGE], 7, *tokens[5 * PAGE :]])["device"] == 5
