"""The admin API over a socket, on a whole gateway with a scripted worker and a real database."""

import asyncio
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from heddle_gateway.routes.admin import admin_router

# The document needs the routes only; nothing is called.
NO_DEPS: Any = SimpleNamespace(workers=None, policy=None)
STEP = {"x-heddle-trajectory-id": "t1"}


async def settled(gateway: Any) -> None:
    """Until everything that happened is in the database."""
    assert await gateway.parts.history.flush(10)


async def get(gateway: Any, path: str, **params: Any) -> Any:
    answer = await gateway.client.get(f"/admin/v1{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(page: Any) -> list[str]:
    return [item["trajectory_id"] for item in page["items"]]


# ------------------------------------------------------------------------------------------ trajectories


async def test_a_trajectory_is_listed_with_its_totals_and_its_live_view(gateway: Any) -> None:
    for text in ("a", "b"):
        await gateway.chat(text, headers={**STEP, "x-heddle-group": "g", "x-heddle-sample": "3"})
    await settled(gateway)
    [item] = (await get(gateway, "/trajectories"))["items"]
    assert (item["trajectory_id"], item["group_id"], item["sample"]) == ("t1", "g", 3)
    assert (item["steps"], item["outcomes"], item["live_steps"]) == (2, {"done": 2}, 0)
    assert (item["prompt_tokens"], item["cached_tokens"], item["output_tokens"]) == (22, 10, 6)
    assert item["phase"] == "in_tool_gap"
    assert item["predicted_remaining"] > 0


async def test_a_trajectory_is_listed_during_its_first_step(gateway: Any, worker: Any, until: Any) -> None:
    go_on = asyncio.Event()

    async def wait(request: Any, line: Any) -> None:
        await go_on.wait()
        await line.answer_chat()

    worker.script = wait
    step = asyncio.create_task(gateway.chat(headers=STEP))
    await until(lambda: len(worker.received) == 1, "the step at the worker")
    [item] = (await get(gateway, "/trajectories"))["items"]
    assert (item["phase"], item["live_steps"], item["steps"], item["outcomes"]) == ("running", 1, 1, {})
    assert ids(await get(gateway, "/trajectories", phase="running")) == ["t1"]
    assert ids(await get(gateway, "/trajectories", phase="in_tool_gap")) == []
    detail = await get(gateway, "/trajectories/t1")
    assert detail["steps"]["items"] == []
    go_on.set()
    await step


@pytest.mark.parametrize(
    "name", ["a/b", "run:1/agent:2", "/lead", "a%2Fb", "sp ace", "q?x=1#f", "ünï", "x/finish", "..", "a//b"]
)
async def test_any_id_survives_the_way_into_the_url_and_back(gateway: Any, name: str) -> None:
    headers = {"x-heddle-trajectory-id": name.encode()}
    answer = await gateway.chat(headers=headers)
    used = answer.headers["x-heddle-trajectory-id"].encode("latin-1").decode("utf-8", "replace")
    await settled(gateway)
    [listed] = ids(await get(gateway, "/trajectories"))
    in_path = quote(listed, safe="").replace(".", "%2E")
    detail = await get(gateway, f"/trajectories/{in_path}")
    assert detail["trajectory"]["trajectory_id"] == listed
    assert len(detail["steps"]["items"]) == 1
    assert used in (name, listed)
    finished = await gateway.client.post(f"/admin/v1/trajectories/{in_path}/finish")
    assert finished.json() == {"trajectory_id": listed, "tenant": "", "live_steps": 0}


async def test_finishing_moves_a_trajectory_from_the_directory_into_history(gateway: Any) -> None:
    await gateway.chat(headers=STEP)
    assert (await gateway.client.post("/admin/v1/trajectories/t1/finish")).status_code == 200
    await settled(gateway)
    [item] = (await get(gateway, "/trajectories", phase="finished"))["items"]
    assert (item["trajectory_id"], item["steps"], item["predicted_remaining"]) == ("t1", 1, None)
    assert item["ended_at"] >= item["last_seen"]
    again = await gateway.client.post("/admin/v1/trajectories/t1/finish")
    assert (again.status_code, again.json()["detail"]) == (409, "trajectory 't1' is not live")


async def test_finishing_waits_for_the_running_step(gateway: Any, worker: Any, until: Any) -> None:
    go_on = asyncio.Event()

    async def wait(request: Any, line: Any) -> None:
        await go_on.wait()
        await line.answer_chat()

    worker.script = wait
    step = asyncio.create_task(gateway.chat(headers=STEP))
    await until(lambda: len(worker.received) == 1, "the step at the worker")
    answer = await gateway.client.post("/admin/v1/trajectories/t1/finish")
    assert answer.json()["live_steps"] == 1
    go_on.set()
    assert (await step).status_code == 200
    await settled(gateway)
    assert ids(await get(gateway, "/trajectories", phase="finished")) == ["t1"]


async def test_pages_join_live_and_past_trajectories_without_loss(gateway: Any) -> None:
    wanted = [f"t{number}" for number in range(9)]
    for name in wanted:
        await gateway.chat(headers={"x-heddle-trajectory-id": name})
    for name in wanted[::2]:
        assert (await gateway.client.post(f"/admin/v1/trajectories/{name}/finish")).status_code == 200
    await settled(gateway)
    for sort in ("last_seen", "-last_seen", "first_seen", "-first_seen", "steps", "-steps"):
        found, cursor = [], None
        while True:
            params = {"limit": 2, "sort": sort} | ({"cursor": cursor} if cursor else {})
            page = await get(gateway, "/trajectories", **params)
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(item["trajectory_id"] for item in found) == wanted
        values = [item[sort.removeprefix("-")] for item in found]
        assert values == sorted(values, reverse=sort.startswith("-"))


async def test_filters_hold_for_live_and_past_ones(gateway: Any, worker: Any) -> None:
    worker.models += ("other",)
    await gateway.chat(headers={"x-heddle-trajectory-id": "live/a", "x-heddle-group": "g"})
    await gateway.chat(headers={"x-heddle-trajectory-id": "past/a", "x-heddle-group": "g"})
    await gateway.chat(headers={"x-heddle-trajectory-id": "live/b"}, model="other")
    await gateway.client.post("/admin/v1/trajectories/past/a/finish")
    await settled(gateway)
    [record] = (await get(gateway, "/trajectories/live/a"))["steps"]["items"]
    assert set(ids(await get(gateway, "/trajectories", group="g"))) == {"live/a", "past/a"}
    assert ids(await get(gateway, "/trajectories", model="other")) == ["live/b"]
    assert ids(await get(gateway, "/trajectories", prefix="past")) == ["past/a"]
    assert len(ids(await get(gateway, "/trajectories", worker=record["worker"]))) == 3
    assert len(ids(await get(gateway, "/trajectories", source=record["source"]))) == 3
    assert ids(await get(gateway, "/trajectories", source="nothing")) == []
    assert ids(await get(gateway, "/trajectories", since=record["ended_at"] + 3600)) == []


async def test_an_id_of_two_tenants_must_be_told_apart(gateway: Any) -> None:
    for key in ("sk-one", "sk-two"):
        await gateway.chat(headers={**STEP, "authorization": f"Bearer {key}"})
    await settled(gateway)
    answer = await gateway.client.get("/admin/v1/trajectories/t1")
    problem = answer.json()
    assert (answer.status_code, problem["field"], len(problem["allowed"])) == (409, "tenant", 2)
    for tenant in problem["allowed"]:
        detail = await get(gateway, "/trajectories/t1", tenant=tenant)
        assert (detail["trajectory"]["tenant"], len(detail["steps"]["items"])) == (tenant, 1)
    assert (await gateway.client.post("/admin/v1/trajectories/t1/finish")).status_code == 409
    one = {"tenant": problem["allowed"][0]}
    assert (await gateway.client.post("/admin/v1/trajectories/t1/finish", params=one)).status_code == 200


async def test_steps_of_a_trajectory_come_in_pages(gateway: Any) -> None:
    for number in range(5):
        await gateway.chat(f"{number}", headers=STEP)
    await settled(gateway)
    first = await get(gateway, "/trajectories/t1", steps_limit=3)
    rest = await get(gateway, "/trajectories/t1", steps_limit=3, steps_after=first["steps"]["next_after"])
    assert [step["step"] for step in first["steps"]["items"] + rest["steps"]["items"]] == [0, 1, 2, 3, 4]
    assert rest["steps"]["next_after"] is None


async def test_history_outlives_the_gateway(new_gateway: Any, worker: Any) -> None:
    first = await new_gateway(worker)
    await first.chat(headers=STEP)
    await first.parts.history.close()
    second = await new_gateway(worker)
    [item] = (await get(second, "/trajectories"))["items"]
    assert (item["trajectory_id"], item["phase"], item["outcomes"]) == ("t1", "dormant", {"done": 1})
    await second.chat(headers=STEP)
    await settled(second)
    [item] = (await get(second, "/trajectories"))["items"]
    assert (item["phase"], item["outcomes"]) == ("in_tool_gap", {"done": 2})


# -------------------------------------------------------------------------------------- workers and policy


async def test_workers_are_listed_added_and_drained(gateway: Any, new_worker: Any, until: Any) -> None:
    second = await new_worker()
    answer = await gateway.client.post("/admin/v1/workers", json={"url": second.url, "slots": 7})
    added = answer.json()
    assert answer.status_code == 201
    await until(lambda: gateway.parts.fleet.active() == 2, "two active workers")
    again = await gateway.client.post("/admin/v1/workers", json={"url": second.url + "/"})
    assert (again.status_code, again.json()["id"]) == (200, added["id"])
    listed = (await get(gateway, "/workers"))["items"]
    assert [one["id"] for one in listed] == sorted(one["id"] for one in listed)
    one = await get(gateway, f"/workers/{added['id']}")
    assert (one["state"], one["kind"], one["slots"], one["degree"]) == ("active", "sglang", 7, 1)
    assert (one["priority"], one["models"]) == ("higher", ["test-model"])
    assert {"abort", "rid", "loads", "generate"} <= set(one["features"])
    drained = await gateway.client.delete(f"/admin/v1/workers/{added['id']}")
    assert drained.status_code == 202
    await until(lambda: len(gateway.parts.fleet.list()) == 1, "the drained worker to go")
    gone = await gateway.client.get(f"/admin/v1/workers/{added['id']}")
    assert (gone.status_code, gone.json()["field"]) == (404, "worker_id")


async def test_the_key_of_a_worker_is_never_shown(gateway: Any, new_worker: Any) -> None:
    second = await new_worker()
    answer = await gateway.client.post("/admin/v1/workers", json={"url": second.url, "api_key": "sk-secret"})
    assert answer.status_code == 201
    assert "sk-secret" not in answer.text + (await gateway.client.get("/admin/v1/workers")).text


@pytest.mark.parametrize("url", ["ftp://host", "http://169.254.169.254", "http://user:pw@host:1", "nonsense"])
async def test_addresses_that_are_refused_name_the_field(gateway: Any, url: str) -> None:
    answer = await gateway.client.post("/admin/v1/workers", json={"url": url})
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (422, "url")
    assert problem["fix"]


async def test_the_policy_switches_live_and_in_part(gateway: Any) -> None:
    before = await get(gateway, "/policy")
    answer = await gateway.client.put("/admin/v1/policy", json={"order": "fcfs", "move_margin": 2})
    assert answer.status_code == 200
    assert answer.json() == before | {"order": "fcfs", "move_margin": 2.0}
    assert await get(gateway, "/policy") == answer.json()
    await gateway.client.put("/admin/v1/policy", json={"placement": "round_robin", "admission": "unlimited"})
    assert (await get(gateway, "/policy"))["order"] == "fcfs"
    assert (await gateway.chat(headers=STEP)).status_code == 200


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"order": "fastest"}, "order", "longest_first"),
        ({"placement": "anywhere"}, "placement", "by_rank"),
        ({"admission": "all"}, "admission", "working_set"),
        ({"ordr": "fcfs"}, "ordr", "order"),
        ({"priority_levels": 99}, "priority_levels", None),
        ({"order": 3}, "order", None),
    ],
)
async def test_a_bad_policy_names_the_field_and_changes_nothing(
    gateway: Any, change: dict[str, Any], field: str, allowed: str | None
) -> None:
    before = await get(gateway, "/policy")
    answer = await gateway.client.put("/admin/v1/policy", json={**change, "backlog": 9})
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (422, field)
    assert answer.headers["content-type"] == "application/problem+json"
    assert allowed is None or allowed in problem["allowed"]
    assert await get(gateway, "/policy") == before


# ------------------------------------------------------------------------------------ counts and problems


async def test_counts_of_gateway_core_and_history_agree(gateway: Any, worker: Any) -> None:
    await gateway.chat(headers=STEP)

    async def refuse(request: Any, line: Any) -> None:
        await line.answer(400, {"object": "error", "message": "too long", "code": 400})

    worker.script = refuse
    await gateway.chat(headers=STEP)
    await settled(gateway)
    stats = await get(gateway, "/stats")
    assert (stats["steps"]["started"], stats["steps"]["in_flight"]) == (2, 0)
    ended = {name: count for name, count in stats["steps"]["ended"].items() if count}
    assert ended == {"done": 1, "client_error": 1}
    assert (stats["history"]["written"], stats["history"]["queued"]) == (2, 0)
    assert await get(gateway, "/audit") == {"broken": []}
    [item] = (await get(gateway, "/trajectories"))["items"]
    assert item["outcomes"] == ended


@pytest.mark.parametrize(
    ("path", "field", "allowed"),
    [
        ("/trajectories?phase=sleeping", "phase", "in_tool_gap"),
        ("/trajectories?sort=size", "sort", "-last_seen"),
        ("/trajectories?limit=0", "limit", None),
        ("/trajectories?since=yesterday", "since", None),
        ("/trajectories?cursor=nonsense", "cursor", None),
        ("/trajectories/t1?steps_limit=0", "steps_limit", None),
        ("/workers/one", "worker_id", None),
    ],
)
async def test_bad_questions_name_the_field(gateway: Any, path: str, field: str, allowed: str | None) -> None:
    answer = await gateway.client.get(f"/admin/v1{path}")
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (422, field)
    assert answer.headers["content-type"] == "application/problem+json"
    assert allowed is None or allowed in problem["allowed"]


async def test_a_cursor_of_another_order_is_refused(gateway: Any) -> None:
    for name in ("a", "b"):
        await gateway.chat(headers={"x-heddle-trajectory-id": name})
    page = await get(gateway, "/trajectories", limit=1, sort="steps")
    answer = await gateway.client.get(
        "/admin/v1/trajectories", params={"cursor": page["next_cursor"], "sort": "-steps"}
    )
    assert (answer.status_code, answer.json()["field"]) == (422, "cursor")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"url": 3}', b'{"url": "http://h", "color": "red"}', b""])
async def test_bad_bodies_are_problems_too(gateway: Any, body: bytes) -> None:
    answer = await gateway.client.post(
        "/admin/v1/workers", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["title"] == HTTPStatus(422).phrase


async def test_an_unknown_trajectory_is_not_found(gateway: Any) -> None:
    for method, path in (("GET", "/trajectories/no/such"), ("POST", "/trajectories/no/such/finish")):
        answer = await gateway.client.request(method, f"/admin/v1{path}")
        assert (answer.status_code, answer.json()["field"]) == (404, "trajectory_id")


async def test_a_database_that_cannot_be_read_is_said_and_steps_go_on(
    new_gateway: Any, worker: Any, tmp_path: Any
) -> None:
    (tmp_path / "broken.db").write_bytes(b"not a database at all " * 1000)
    gateway = await new_gateway(worker, database=str(tmp_path / "broken.db"))
    assert (await gateway.chat(headers=STEP)).status_code == 200
    answer = await gateway.client.get("/admin/v1/trajectories")
    assert answer.status_code == 503
    assert "cannot be read" in answer.json()["detail"]
    assert answer.headers["retry-after"]
    # What is live needs no database to be finished.
    assert (await gateway.client.post("/admin/v1/trajectories/t1/finish")).status_code == 200
    assert (await get(gateway, "/stats"))["history"]["last_error"]


def test_the_api_documents_itself() -> None:
    app = FastAPI()
    app.include_router(admin_router(NO_DEPS))
    document = app.openapi()
    paths = {path: set(methods) for path, methods in document["paths"].items() if path.startswith("/admin")}
    assert paths == {
        "/admin/v1/trajectories": {"get"},
        "/admin/v1/trajectories/{trajectory_id}": {"get"},
        "/admin/v1/trajectories/{trajectory_id}/finish": {"post"},
        "/admin/v1/workers": {"get", "post"},
        "/admin/v1/workers/{worker_id}": {"get", "delete"},
        "/admin/v1/policy": {"get", "put"},
        "/admin/v1/audit": {"get"},
        "/admin/v1/stats": {"get"},
    }
    for path, methods in paths.items():
        for method in methods:
            operation = document["paths"][path][method]
            assert operation["summary"]
            assert operation["tags"]
    schemas = document["components"]["schemas"]
    for name in ("TrajectorySummary", "WorkerView", "WorkerAdd", "PolicyChange", "Policy", "Problem"):
        assert schemas[name]["examples"], name


async def test_a_body_without_its_content_type_is_told_which_to_send(gateway: Any) -> None:
    answer = await gateway.client.put("/admin/v1/policy", content=b'{"placement": "sticky"}')
    assert answer.status_code == 422
    assert "content-type: application/json" in answer.json()["fix"]
