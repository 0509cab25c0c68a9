"""Whatever is wrong with a request to an operator's route, the answer names the field and the fix."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heddle_gateway.app import create_app
from heddle_gateway.settings import load_settings

VALUES = {"worker_id": "1", "version": "1", "trajectory_id": "t", "rollout_id": "r"}


def operations(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """(method, path, whether it takes a body) of every admin route."""
    document = create_app(load_settings(database=str(folder / "history.db"))).openapi()
    for path, methods in document["paths"].items():
        if path.startswith("/admin/"):
            for method, operation in methods.items():
                filled = re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], path)
                yield method.upper(), filled, "requestBody" in operation


def problem_of(answer: Any) -> Any:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    assert problem["fix"], problem
    return problem


async def test_no_admin_route_takes_a_parameter_in_silence(gateway: Any, tmp_path: Path) -> None:
    found = list(operations(tmp_path))
    assert len(found) > 20
    for method, path, _ in found:
        problem = problem_of(await gateway.client.request(method, path, params={"bogus": "1"}))
        assert (problem["status"], problem["field"]) == (422, "bogus"), path


@pytest.mark.parametrize(
    ("content", "kind", "field"),
    [
        (b"{", "application/json", "body"),
        (b"", "application/json", "body"),
        (b"[]", "application/json", "body"),
        (b'"x"', "application/json", "body"),
        (b'{"bogus": 1}', "application/json", "bogus"),
        (b"{}", None, "body"),
        (b"a=b", "application/x-www-form-urlencoded", "body"),
        (b"\xff", "application/json", None),
    ],
)
async def test_every_admin_route_with_a_body_says_what_is_wrong_with_one(
    gateway: Any, tmp_path: Path, content: bytes, kind: str | None, field: str | None
) -> None:
    headers = {"content-type": kind} if kind is not None else {}
    found = [(method, path) for method, path, has_body in operations(tmp_path) if has_body]
    assert len(found) >= 5
    for method, path in found:
        if not content and path == "/admin/v1/plans":
            continue  # Its body may be left out.
        answer = await gateway.client.request(method, path, content=content, headers=headers)
        problem = problem_of(answer)
        assert problem["status"] in (400, 422), path
        if field == "bogus":
            assert field in [problem["field"], *problem["detail"].replace("`", " ").split()], path
        elif field is not None:
            assert problem["field"] == field, path


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/trajectories?since=nan", None, "since"),
        ("GET", "/trajectories?since=inf", None, "since"),
        ("GET", "/trajectories/t?steps_after=99999999999999999999", None, "steps_after"),
        ("GET", "/events?kind=bogus", None, "kind"),
        ("GET", "/migrations?state=bogus", None, "state"),
        ("GET", "/plans?live=perhaps", None, "live"),
        ("GET", "/plans/0", None, "version"),
        ("POST", "/workers", {"url": "http://h:1", "name": "a\nb"}, "name"),
        ("POST", "/workers", {"url": "http://h:1", "name": ""}, "name"),
        ("POST", "/workers", {"url": "http://h:1", "api_key": "k\n"}, "api_key"),
        ("POST", "/workers", {"url": "http://h:1", "slots": 2**40}, "slots"),
        ("POST", "/workers", {"url": 7}, "url"),
        ("POST", "/rollouts", {"lengths": ["long"]}, "lengths.0"),
        ("POST", "/migrations", {"trajectory_id": "t", "to": "w", "deadline_s": 0}, "deadline_s"),
    ],
)
async def test_values_that_cannot_be_name_their_field(
    gateway: Any, method: str, path: str, body: Any, field: str
) -> None:
    problem = problem_of(await gateway.client.request(method, f"/admin/v1{path}", json=body))
    assert (problem["status"], problem["field"]) == (422, field)


async def test_kinds_of_events_that_there_are_not_are_told_from_those_there_are(gateway: Any) -> None:
    problem = problem_of(await gateway.client.get("/admin/v1/events?kind=expire&kind=bogus"))
    assert problem["field"] == "kind"
    assert {"dispatch", "expire", "predicted", "plan_activated", "migrate"} <= set(problem["allowed"])


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "nothing", 404), ("PATCH", "policy", 405)])
async def test_a_route_that_there_is_not_is_a_problem_too(
    gateway: Any, method: str, path: str, status: int
) -> None:
    problem = problem_of(await gateway.client.request(method, f"/admin/v1/{path}"))
    assert problem["status"] == status


@pytest.mark.parametrize(
    ("method", "path", "sent", "field"),
    [
        ("POST", "/pause_generation", {"content": b'{"mode": "abort"}'}, "body"),
        ("POST", "/continue_generation", {"content": b"[]"}, "body"),
        ("POST", "/abort_request", {"json": {"rid": 7}}, "rid"),
        ("POST", "/abort_request", {}, "body"),
        ("POST", "/workers", {"json": {}}, "url"),
        ("POST", "/workers/1/report", {"json": {"engine": "asleep"}}, "instance"),
        ("POST", "/add_worker", {}, "url"),
        ("POST", "/finish_session", {}, "session_id"),
        ("POST", "/flush_cache?timeout=soon", {}, "timeout"),
        ("GET", "/flush_cache?timeout=inf", {}, "timeout"),
        ("GET", "/v1/loads?dp_rank=first", {}, "dp_rank"),
        ("GET", "/v1/models?limit=0", {}, "limit"),
    ],
)
async def test_frameworks_and_agents_are_told_in_the_shape_they_read(
    gateway: Any, method: str, path: str, sent: dict[str, Any], field: str
) -> None:
    answer = await gateway.client.request(method, path, **sent)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (422, "invalid_request_error", field)
    assert error["message"].startswith(f"{field}: ")
    assert "Send " in error["message"]
    assert error["code"] == "invalid_value"


async def test_anthropic_s_clients_are_told_in_anthropic_s_shape(gateway: Any) -> None:
    answer = await gateway.client.get("/v1/models?limit=0", headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["type"]) == (422, "error")


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
async def test_controls_need_no_body(gateway: Any, path: str) -> None:
    """The scripted worker has neither of the two: the gateway takes the call and says so."""
    answer = await gateway.client.post(path)
    assert (answer.status_code, answer.json()["workers"][0]["result"]) == (501, "unsupported")
