import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from heddle_gateway.fleet import (
    EngineKind,
    Features,
    Fleet,
    PrioritySense,
    WorkerFacts,
    WorkerSpec,
    WorkerState,
)
from heddle_gateway.fleet.engines.vllm import wanted_samples

Serve = Callable[..., Awaitable[Any]]
NewFleet = Callable[..., Fleet]


@pytest.fixture
def identify(new_fleet: NewFleet, listener: Any) -> Callable[..., Awaitable[WorkerFacts]]:
    """Adds a worker and waits for what the listener is told of it."""

    async def ask(spec: WorkerSpec) -> WorkerFacts:
        view = await new_fleet().add(spec)
        told = await listener.until_told("up", view.worker_id, 1)
        facts: WorkerFacts = told.more["facts"]
        return facts

    return ask


Identify = Callable[[WorkerSpec], Awaitable[WorkerFacts]]


async def test_sglang_tells_degree_capacity_priority_and_model(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang")
    facts = await identify(WorkerSpec(fake.url))
    assert facts == WorkerFacts(
        worker_id=1,
        generation=1,
        name=f"127.0.0.1:{fake.port}",
        url=fake.url,
        kind=EngineKind.SGLANG,
        features=Features(
            abort=True,
            rid=True,
            loads=True,
            generate=True,
            pause=True,
            flush=True,
            priority=PrioritySense.HIGHER_FIRST,
        ),
        models=("qwen3-8b",),
        degree=2,
        slots=48,
        kv_tokens=400_000,
        version="0.5.23",
        weight_version="default",
        page_size=16,
        preemption_threshold=10,
    )
    assert facts.has_priority


async def test_asking_what_a_worker_can_do_calls_nothing(identify: Identify, serve: Serve) -> None:
    """A probe must not abort, pause or flush: every question is a GET, and none goes to /flush_cache."""
    fake = await serve("sglang")
    await identify(WorkerSpec(fake.url))
    assert {seen.method for seen in fake.seen} == {"GET"}
    assert "/flush_cache" not in {seen.path for seen in fake.seen}


@pytest.mark.parametrize(
    ("info", "sense", "threshold"),
    [
        ({"enable_priority_scheduling": False}, PrioritySense.NONE, None),
        ({"schedule_low_priority_values_first": True}, PrioritySense.LOWER_FIRST, 10),
        ({"disable_priority_preemption": True}, PrioritySense.HIGHER_FIRST, None),
        ({"priority_scheduling_preemption_threshold": 0}, PrioritySense.HIGHER_FIRST, 0),
    ],
)
async def test_sglang_priority_is_read_from_its_arguments(
    identify: Identify, serve: Serve, info: dict[str, Any], sense: PrioritySense, threshold: int | None
) -> None:
    fake = await serve("sglang", **info)
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.features.priority, facts.preemption_threshold) == (sense, threshold)


async def test_sglang_capacities_of_data_parallel_ranks_add_up(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang", dp_size=4, tp_size=8, pp_size=2)
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.slots, facts.kv_tokens) == (4 * 48, 4 * 400_000)
    assert (facts.degree, facts.data_parallel, facts.pipeline_parallel) == (8, 4, 2)


async def test_an_older_sglang_is_asked_by_its_older_routes(identify: Identify, serve: Serve) -> None:
    """Before /server_info there was /get_server_info, and no /ping."""
    fake = await serve("sglang", internal_states=[], max_running_requests=32, version="0.5.3")
    for path in ("/server_info", "/model_info"):
        fake.answers["/get_" + path[1:]] = fake.answers.pop(path)
    del fake.answers["/ping"], fake.answers["/v1/loads"], fake.posts["/pause_generation"]
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.kind, facts.slots, facts.weight_version) == (EngineKind.SGLANG, 32, "default")
    assert not facts.features.loads
    assert not facts.features.pause
    assert facts.features.abort


async def test_the_emulated_engine_is_known_as_emulated(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang", heddle_emulated=True, heddle_instance_id="a")
    assert (await identify(WorkerSpec(fake.url))).emulated


async def test_vllm_is_done_without_abort_rid_and_priority(identify: Identify, serve: Serve) -> None:
    fake = await serve("vllm")
    facts = await identify(WorkerSpec(fake.url))
    assert facts.kind is EngineKind.VLLM
    assert facts.features == Features(loads=True)
    assert (facts.models, facts.degree, facts.slots, facts.kv_tokens) == (("m",), 1, 64, 16_000)


async def test_vllm_in_developer_mode_tells_its_policy_and_degree(identify: Identify, serve: Serve) -> None:
    config = {
        "scheduler_config": {"policy": "priority", "max_num_seqs": 128},
        "parallel_config": {"tensor_parallel_size": 4, "data_parallel_size": 1},
    }
    fake = await serve("vllm", answers={"/server_info": (200, {"vllm_config": config})})
    facts = await identify(WorkerSpec(fake.url))
    assert facts.kind is EngineKind.VLLM
    assert (facts.features.priority, facts.slots, facts.degree) == (PrioritySense.LOWER_FIRST, 128, 4)


async def test_vllm_without_metrics_is_known_by_its_model_cards(identify: Identify, serve: Serve) -> None:
    fake = await serve("vllm")
    del fake.answers["/metrics"]
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.kind, facts.features.loads, facts.kv_tokens) == (EngineKind.VLLM, False, 0)


async def test_llamacpp_tells_its_slots(identify: Identify, serve: Serve) -> None:
    fake = await serve("llamacpp")
    facts = await identify(WorkerSpec(fake.url))
    assert facts.kind is EngineKind.LLAMACPP
    assert (facts.slots, facts.kv_tokens, facts.models) == (4, 0, ("m.gguf",))
    assert facts.features == Features(loads=True)


async def test_any_openai_compatible_server_works_with_nothing_assumed(
    identify: Identify, serve: Serve
) -> None:
    fake = await serve("openai")
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.kind, facts.features, facts.models) == (EngineKind.OPENAI, Features(), ("qwen3-8b",))
    assert not facts.has_priority


async def test_what_the_spec_says_wins_over_what_the_server_says(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang")
    spec = WorkerSpec(
        fake.url,
        name="big",
        model="other",
        degree=8,
        slots=7,
        kv_tokens=0,
        priority=PrioritySense.NONE,
    )
    facts = await identify(spec)
    assert (facts.name, facts.models, facts.degree, facts.slots, facts.kv_tokens) == (
        "big",
        ("other",),
        8,
        7,
        0,
    )
    assert not facts.has_priority


async def test_a_spec_with_a_kind_asks_for_that_kind_only(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang")
    facts = await identify(WorkerSpec(fake.url, kind=EngineKind.OPENAI))
    assert facts.kind is EngineKind.OPENAI
    assert {seen.path for seen in fake.seen} == {"/v1/models"}


async def test_nonsense_numbers_of_a_server_are_not_believed(identify: Identify, serve: Serve) -> None:
    fake = await serve(
        "sglang",
        tp_size="many",
        dp_size=-1,
        max_total_num_tokens=1e400,
        internal_states=["x"],
        page_size=True,
    )
    facts = await identify(WorkerSpec(fake.url))
    assert (facts.degree, facts.slots, facts.page_size) == (1, 64, None)
    assert facts.kv_tokens <= 2**53


async def test_the_key_of_a_worker_is_sent_and_never_shown(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang", api_key="k3y-of-worker")
    spec = WorkerSpec(fake.url, api_key="k3y-of-worker")
    await identify(spec)
    assert {seen.headers["authorization"] for seen in fake.seen} == {"Bearer k3y-of-worker"}
    assert "k3y" not in repr(spec)


async def test_a_wrong_key_is_said_and_the_worker_stays_out(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve("sglang", api_key="right")
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url, api_key="wrong"))
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert "401" in str(fleet.get(view.worker_id).last_error)
    assert "wrong" not in str(fleet.get(view.worker_id).last_error)
    assert listener.told == []


async def test_a_server_that_is_no_engine_is_not_taken_for_one(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    fake = await serve("openai", answers={"/v1/models": (200, "<html>hello</html>")})
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert "/v1/models" in str(fleet.get(view.worker_id).last_error)
    assert fleet.get(view.worker_id).state is WorkerState.PROBING


@pytest.mark.parametrize("kind", ["sglang", "vllm", "llamacpp", "openai"])
async def test_a_server_that_loads_its_model_is_waited_for(
    new_fleet: NewFleet, serve: Serve, listener: Any, kind: str
) -> None:
    fake = await serve(kind)
    ready = dict(fake.answers)
    loading = {"error": {"message": "Loading model"}}
    fake.answers = dict.fromkeys((*ready, "/server_info"), (503, loading))
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert fleet.get(view.worker_id).state is WorkerState.PROBING
    fake.answers = ready
    told = await listener.until_told("up", view.worker_id, 1)
    assert told.more["facts"].kind == kind


async def test_sglang_in_its_warm_up_is_not_active_yet(
    new_fleet: NewFleet, serve: Serve, listener: Any
) -> None:
    """Its /server_info answers before the warm-up is over."""
    fake = await serve("sglang", answers={"/ping": (503, "")})
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: "/ping" in str(fleet.get(view.worker_id).last_error))
    fake.answers["/ping"] = (200, "")
    await listener.until_told("up", view.worker_id, 1)


async def test_redirects_are_not_followed(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    target = await serve("sglang")
    fake = await serve("openai", answers={"/v1/models": (302, ""), "/server_info": (302, "")})
    fake.headers = {"location": f"{target.url}/server_info"}
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: fleet.get(view.worker_id).last_error)
    assert "302" in str(fleet.get(view.worker_id).last_error)
    assert target.seen == []


async def test_proxies_of_the_environment_are_ignored(
    identify: Identify, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    fake = await serve("sglang")
    await identify(WorkerSpec(fake.url))


async def test_an_endless_answer_is_cut_off(new_fleet: NewFleet, serve: Serve, listener: Any) -> None:
    fake = await serve("openai", answers={"/v1/models": (200, "x" * (9 * 1024 * 1024))})
    fleet = new_fleet()
    view = await fleet.add(WorkerSpec(fake.url))
    await listener.until(lambda: "bytes" in str(fleet.get(view.worker_id).last_error))


async def test_an_answer_that_drips_is_given_up_as_a_whole(
    new_fleet: NewFleet, listener: Any, quick: Any
) -> None:
    """Each byte comes well within a read timeout; only a bound on the whole question ends it."""

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"x-drip: 1\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fleet = new_fleet(replace(quick, probe_timeout_s=0.2))
    started = time.monotonic()
    view = await fleet.add(WorkerSpec(f"http://127.0.0.1:{port}", kind=EngineKind.OPENAI))
    await listener.until(lambda: "in time" in str(fleet.get(view.worker_id).last_error))
    assert time.monotonic() - started < 5
    await fleet.close()
    server.close()


async def test_a_worker_on_ipv6_is_reached(identify: Identify, serve: Serve) -> None:
    fake = await serve("sglang", host="::1")
    facts = await identify(WorkerSpec(f"http://[0:0::1]:{fake.port}/v1"))
    assert (facts.url, facts.name) == (f"http://[::1]:{fake.port}", f"[::1]:{fake.port}")


def test_a_metrics_page_that_breaks_the_format_counts_as_none() -> None:
    assert wanted_samples('vllm:num_requests_running{engine="0" 1.0') == {}
    assert wanted_samples("vllm:num_requests_running NaN\n") == {}
    assert wanted_samples("vllm:num_requests_running 2\nvllm:other 3\n") == {
        "vllm:num_requests_running": [({}, 2.0)]
    }
