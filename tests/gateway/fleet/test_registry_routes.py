"""The registry as RL frameworks speak to it, over a real socket."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from heddle_gateway.fleet import Fleet, FleetTuning, WorkerSpec
from heddle_gateway.routes.new_weights import new_weights_router
from heddle_gateway.routes.registry import AttemptRef, RegistryDeps, registry_router, session_router

Serve = Callable[..., Awaitable[Any]]


@dataclass
class Steps:
    """The steps in flight, as a table."""

    attempts: dict[str, list[AttemptRef]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    sessions: set[tuple[str, str | None]] = field(default_factory=set)
    pauses: list[bool] = field(default_factory=list)
    """Whether dispatch was paused, change by change."""

    def pause_dispatch(self, paused: bool) -> bool:
        changes = paused != (self.pauses[-1:] == [True])
        self.pauses += [paused] if changes else []
        return changes

    def attempts_of(self, rid: str) -> list[AttemptRef]:
        return self.attempts.get(rid, [])

    def end_waiting(self, rid: str | None) -> int:
        ended = [one for one in self.waiting if rid in {None, one}]
        self.waiting = [one for one in self.waiting if one not in ended]
        return len(ended)

    def finish_session(self, session_id: str, headers: Mapping[str, str]) -> bool:
        authorization = headers.get("authorization")
        known = (session_id, authorization) in self.sessions
        self.sessions.discard((session_id, authorization))
        return known


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], quick: FleetTuning) -> Fleet:
    return new_fleet(replace(quick, max_workers=3))


@pytest.fixture
def steps() -> Steps:
    return Steps()


async def admin_key(authorization: Annotated[str | None, Header()] = None) -> None:
    if authorization != "Bearer admin":
        raise HTTPException(401)


@pytest.fixture
async def router(
    fleet: Fleet, steps: Steps, serve_app: Callable[[Any], Awaitable[str]]
) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(redirect_slashes=False)
    deps = RegistryDeps(fleet, steps)
    app.include_router(registry_router(deps, [Depends(admin_key)]))
    app.include_router(new_weights_router(fleet, [Depends(admin_key)]))
    app.include_router(session_router(deps))
    headers = {"authorization": "Bearer admin"}
    async with httpx.AsyncClient(
        base_url=await serve_app(app), headers=headers, trust_env=False, timeout=10
    ) as client:
        yield client


Router = httpx.AsyncClient


def posts(fake: Any, path: str) -> list[Any]:
    return [seen for seen in fake.seen if (seen.method, seen.path) == ("POST", path)]


async def test_slime_registers_lists_and_removes_a_worker(
    router: Router, serve: Serve, listener: Any, live: Any
) -> None:
    fake = await serve()
    body = {"url": fake.url, "worker_type": "regular", "bootstrap_port": None}
    added = await router.post("/workers", json=body)
    assert (added.status_code, added.headers["location"]) == (202, "/workers/1")
    await listener.until_told("up", 1, 1)
    listed = (await router.get("/workers")).json()["workers"]
    assert [(worker["id"], worker["url"]) for worker in listed] == [("1", fake.url)]
    assert listed[0]["is_healthy"]
    assert listed[0]["model_id"] == "qwen3-8b"
    live.steps[1] = 1
    removed = await router.delete("/workers/1")
    assert (removed.status_code, removed.json()["state"]) == (202, "draining")
    assert (await router.get("/workers/1")).json()["state"] == "draining"
    live.steps[1] = 0
    await listener.until_told("removed", 1, 1)
    assert (await router.get("/workers")).json() == {"workers": [], "total": 0}
    assert (await router.delete("/workers/1")).status_code == 404


async def test_the_older_router_dialect_works(router: Router, serve: Serve, listener: Any) -> None:
    fake = await serve()
    added = await router.post("/add_worker", params={"url": fake.url + "/"})
    assert (added.status_code, added.text) == (200, f"Successfully added worker: {fake.url}")
    await listener.until_told("up", 1, 1)
    assert (await router.get("/list_workers")).json() == {"urls": [fake.url]}
    removed = await router.post("/remove_worker", params={"url": fake.url})
    assert removed.text == f"Successfully removed worker: {fake.url}"
    await listener.until_told("removed", 1, 1)
    assert (await router.get("/list_workers")).json() == {"urls": []}
    assert (await router.post("/remove_worker", params={"url": fake.url})).status_code == 404


async def test_a_worker_can_be_named_by_its_url(router: Router, serve: Serve, listener: Any) -> None:
    fake = await serve()
    await router.post("/workers", json={"url": fake.url})
    await listener.until_told("up", 1, 1)
    quoted = fake.url.replace(":", "%3A").replace("/", "%2F")
    assert (await router.get(f"/workers/{quoted}")).json()["id"] == "1"
    assert (await router.delete(f"/workers/{quoted}")).status_code == 202
    await listener.until_told("removed", 1, 1)


async def test_registering_overrides_what_is_found_by_asking(
    router: Router, serve: Serve, listener: Any
) -> None:
    fake = await serve()
    body = {"url": fake.url, "name": "big", "degree": 8, "slots": 3, "labels": {"zone": "a"}, "cost": 1.5}
    assert (await router.post("/workers", json=body)).status_code == 202
    facts = (await listener.until_told("up", 1, 1)).more["facts"]
    assert (facts.name, facts.degree, facts.slots) == ("big", 8, 3)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"url": "http://169.254.169.254/latest"}, 400, "worker_refused"),
        ({"url": "ftp://gpu1"}, 400, "worker_refused"),
        ({"url": "http://gpu1", "name": "a\nb"}, 400, "worker_refused"),
        ({"url": "http://gpu1", "worker_type": "prefill"}, 400, "worker_type_unsupported"),
    ],
)
async def test_a_worker_that_may_not_be_is_refused_with_a_reason(
    router: Router, fleet: Fleet, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await router.post("/workers", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert fleet.list() == []


async def test_ssrf_through_the_older_dialect_is_refused_too(router: Router, fleet: Fleet) -> None:
    for url in ("http://169.254.169.254", "http://2852039166", "file:///etc/passwd"):
        assert (await router.post("/add_worker", params={"url": url})).status_code == 400
    assert fleet.list() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/workers"),
        ("GET", "/workers"),
        ("GET", "/workers/1"),
        ("DELETE", "/workers/1"),
        ("POST", "/add_worker?url=http://gpu1"),
        ("POST", "/remove_worker?url=http://gpu1"),
        ("GET", "/list_workers"),
        ("POST", "/abort_request"),
        ("POST", "/flush_cache"),
        ("GET", "/flush_cache"),
        ("POST", "/pause_generation"),
        ("POST", "/continue_generation"),
        ("POST", "/update_weights_from_disk"),
        ("GET", "/v1/loads"),
        ("GET", "/get_loads"),
    ],
)
async def test_every_route_of_the_operator_asks_for_the_admin_key(
    router: Router, method: str, path: str
) -> None:
    answer = await router.request(method, path, headers={"authorization": "Bearer agent"})
    assert answer.status_code == 401


async def test_an_agent_closes_its_session_and_only_its_own(router: Router, steps: Steps) -> None:
    steps.sessions = {("a/b:0", "Bearer agent")}
    params = {"session_id": "a/b:0"}
    foreign = await router.post("/finish_session", params=params, headers={"authorization": "Bearer other"})
    assert (foreign.status_code, foreign.json()["finished"]) == (200, False)
    for finished in (True, False):
        answer = await router.post(
            "/finish_session", params=params, headers={"authorization": "Bearer agent"}
        )
        assert answer.json() == {"session_id": "a/b:0", "finished": finished}


@pytest.fixture
async def two_workers(fleet: Fleet, serve: Serve, listener: Any) -> list[Any]:
    """An SGLang (id 1), which has every control, and an OpenAI-compatible server (id 2), which has none."""
    fakes = [await serve("sglang"), await serve("openai")]
    fakes[0].posts["/flush_cache"] = (200, "Cache flushed.")
    for worker_id, fake in enumerate(fakes, start=1):
        await fleet.add(WorkerSpec(fake.url))
        await listener.until_told("up", worker_id, 1)
    return fakes


async def test_abort_by_id_goes_to_its_worker_under_the_id_it_has_there(
    router: Router, steps: Steps, two_workers: list[Any]
) -> None:
    minted = "0" * 32
    steps.attempts = {"caller-id": [AttemptRef(1, 1, minted)]}
    answer = await router.post("/abort_request", json={"rid": "caller-id"})
    assert (answer.status_code, answer.json()["done"]) == (200, 1)
    assert [json.loads(seen.body) for seen in posts(two_workers[0], "/abort_request")] == [{"rid": minted}]


async def test_an_unknown_or_empty_id_never_reaches_an_engine(
    router: Router, steps: Steps, two_workers: list[Any]
) -> None:
    """Engines match by prefix: a short foreign id would abort other callers' requests, an empty one all."""
    steps.attempts = {"gone": [AttemptRef(1, 7, "f" * 32)]}
    for body in ({"rid": "0"}, {"rid": "gone"}):
        answer = await router.post("/abort_request", json=body)
        assert (answer.status_code, answer.json()["done"]) == (200, 0)
    for body in ({"rid": ""}, {}, {"rid": None, "abort_all": False}):
        assert (await router.post("/abort_request", json=body)).status_code == 400
    assert posts(two_workers[0], "/abort_request") == []


async def test_abort_all_ends_what_waits_and_fans_out(
    router: Router, steps: Steps, two_workers: list[Any]
) -> None:
    steps.waiting = ["a", "b"]
    answer = await router.post("/abort_request", json={"abort_all": True})
    report = answer.json()
    assert answer.status_code == 200
    assert (report["waiting_aborted"], report["done"], steps.waiting) == (2, 1, [])
    assert [worker["result"] for worker in report["workers"]] == ["done", "unsupported"]
    assert json.loads(posts(two_workers[0], "/abort_request")[0].body)["abort_all"] is True
    assert posts(two_workers[1], "/abort_request") == []


async def test_abort_all_without_workers_still_ends_what_waits(router: Router, steps: Steps) -> None:
    steps.waiting = ["a"]
    answer = await router.post("/abort_request", json={"abort_all": True})
    assert (answer.status_code, answer.json()["waiting_aborted"]) == (200, 1)


async def test_controls_pass_their_body_on_and_report_each_worker(
    router: Router, steps: Steps, two_workers: list[Any]
) -> None:
    paused = await router.post("/pause_generation", json={"mode": "in_place"})
    assert paused.json()["success"]
    assert json.loads(posts(two_workers[0], "/pause_generation")[0].body) == {"mode": "in_place"}
    assert (await router.post("/continue_generation")).json()["done"] == 1
    assert json.loads(posts(two_workers[0], "/continue_generation")[0].body) == {}
    assert steps.pauses == [True, False]


async def test_new_weights_on_a_disk_are_read_by_every_engine(router: Router, two_workers: list[Any]) -> None:
    body = {"model_path": "/ckpt/7", "weight_version": "7", "abort_all_requests": False}
    two_workers[0].posts["/update_weights_from_disk"] = (200, '{"success": true, "message": "Succeeded."}')
    answer = await router.post("/update_weights_from_disk", json=body)
    assert (answer.status_code, answer.json()["success"], answer.json()["done"]) == (200, True, 1)
    assert [worker["result"] for worker in answer.json()["workers"]] == ["done", "unsupported"]
    assert [json.loads(seen.body) for seen in posts(two_workers[0], "/update_weights_from_disk")] == [body]
    two_workers[0].posts["/update_weights_from_disk"] = (400, '{"success": false, "message": "no such file"}')
    refused = await router.post("/update_weights_from_disk", json=body)
    assert (refused.status_code, refused.json()["success"]) == (400, False)
    assert "no such file" in refused.json()["workers"][0]["message"]


async def test_a_pause_that_no_worker_made_holds_nothing_up(
    router: Router, steps: Steps, two_workers: list[Any]
) -> None:
    two_workers[0].posts["/pause_generation"] = (500, "no")
    assert (await router.post("/pause_generation")).status_code == 500
    assert steps.pauses == [True, False]
    two_workers[0].posts["/pause_generation"] = (200, "paused")
    assert (await router.post("/pause_generation")).status_code == 200
    # Asked a second time: the engine is paused by the first.
    two_workers[0].posts["/pause_generation"] = (500, "no")
    assert (await router.post("/pause_generation")).status_code == 500
    assert steps.pauses == [True, False, True]


async def test_a_cache_that_cannot_be_flushed_now_is_said_as_the_engine_says_it(
    router: Router, two_workers: list[Any]
) -> None:
    assert (await router.get("/flush_cache")).status_code == 200
    two_workers[0].posts["/flush_cache"] = (400, "not idle")
    answer = await router.post("/flush_cache")
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert answer.json()["workers"][0]["message"] == "not idle"


async def test_a_control_that_no_worker_has_or_no_worker_hears_is_an_error(
    router: Router, fleet: Fleet, serve: Serve, listener: Any
) -> None:
    nobody = await router.post("/flush_cache")
    assert (nobody.status_code, nobody.headers["retry-after"]) == (503, "5")
    fake = await serve("openai")
    await fleet.add(WorkerSpec(fake.url))
    await listener.until_told("up", 1, 1)
    assert (await router.post("/flush_cache")).status_code == 501


async def test_loads_are_asked_now_and_name_their_worker(
    router: Router, fleet: Fleet, two_workers: list[Any]
) -> None:
    two_workers[0].answers["/v1/loads"] = (
        200,
        {
            "loads": [
                {"dp_rank": 0, "num_running_reqs": 1, "num_waiting_reqs": 2, "num_used_tokens": 3},
                {"dp_rank": 1, "num_running_reqs": 10, "num_waiting_reqs": 20, "num_used_tokens": 30},
            ]
        },
    )
    answer = (await router.get("/v1/loads", params={"include": "core"})).json()
    assert [(load["dp_rank"], load["num_running_reqs"], load["worker_id"]) for load in answer["loads"]] == [
        (0, 1, "1"),
        (1, 10, "1"),
    ]
    assert [(line["worker_id"], line["load"]) for line in answer["workers"]] == [("1", 33), ("2", -1)]
    assert (answer["total_workers"], answer["successful"], answer["failed"]) == (2, 1, 1)
    one_rank = (await router.get("/get_loads", params={"dp_rank": 1})).json()
    assert [load["num_used_tokens"] for load in one_rank["loads"]] == [30]


async def test_a_full_fleet_is_said(router: Router, fleet: Fleet) -> None:
    limit = fleet.tuning.max_workers
    for port in range(1, limit + 1):
        await fleet.add(WorkerSpec(f"http://127.0.0.1:{port}"))
    answer = await router.post("/workers", json={"url": "http://127.0.0.1:60000"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "fleet_full")
