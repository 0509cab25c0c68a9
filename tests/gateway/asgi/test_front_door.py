"""What every request passes before a route sees it."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from heddle_gateway.asgi.access import AccessRule
from heddle_gateway.asgi.client_path import route_path
from heddle_gateway.asgi.host import HostRule
from heddle_gateway.asgi.request_id import request_id
from heddle_gateway.identity.urls import split_path

CHAT = "/v1/chat/completions"
OPERATORS = (
    "/admin/v1/trajectories",
    "/admin/v1/policy",
    "/workers",
    "/metrics",
    "/openapi.json",
    "/no/such/route",
)


def headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.mark.parametrize("wanted", ["req-1", "a/b:c.d_e-f", "x" * 256])
def test_a_harmless_request_id_is_kept(wanted: str) -> None:
    assert request_id(wanted) == wanted.encode()


@pytest.mark.parametrize("wanted", [None, "", "x" * 257, "a b", "a\r\nset-cookie: x", "ä", "a\n"])
def test_any_other_request_id_is_replaced(wanted: str | None) -> None:
    given = request_id(wanted)
    assert len(given) == 32
    assert given != (wanted or "").encode()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "heddle.example.org", "a_b-c"])
def test_hosts_are_accepted(host: str) -> None:
    assert HostRule().accepts(host)


@pytest.mark.parametrize("host", ["x/#@y", "a b", "user@host", "host:port", "", "host:123456", "a\nb"])
def test_what_is_no_host_is_refused(host: str) -> None:
    assert not HostRule().accepts(host)


def test_only_allowed_hosts_pass_when_some_are_named() -> None:
    rule = HostRule(["Gateway.Example"])
    assert rule.accepts("gateway.example:8000")
    assert not rule.accepts("other.example")


@pytest.mark.parametrize(
    ("path", "routed"),
    [
        (CHAT, CHAT),
        (CHAT + "/", CHAT),
        ("/chat/completions", CHAT),
        ("/models/", "/v1/models"),
        ("/t/run-1" + CHAT, CHAT),
        ("/t/a/b:0" + CHAT + "/", CHAT),
        ("/sessions/x/v1/models", "/v1/models"),
        ("/sessions/x/v1/models/org/name", "/v1/models/org/name"),
        ("/t/x/generate", "/generate"),
        ("/t/x/inference/v1/generate", "/inference/v1/generate"),
        ("/t/x/tokenize", "/tokenize"),
        ("/t/x/admin/v1/policy", "/t/x/admin/v1/policy"),
        ("/t/x/v1/../../admin/v1/policy", "/t/x/v1/../../admin/v1/policy"),
        ("/t/x/metrics", "/t/x/metrics"),
        ("/", "/"),
    ],
)
def test_prefixes_lead_to_agents_routes_and_nowhere_else(path: str, routed: str) -> None:
    assert route_path(path, lambda called: split_path(called).rest) == routed


@pytest.mark.parametrize("path", OPERATORS)
def test_what_is_not_an_agents_route_is_an_operators(path: str) -> None:
    rule = AccessRule(agent_keys=["agent"], admin_keys=["admin"])
    assert rule.denial("GET", path, headers("agent")) is not None
    assert rule.denial("GET", path, headers(None)) is not None
    assert rule.denial("GET", path, headers("admin")) is None


def test_agents_routes_take_agents_and_operators_keys() -> None:
    rule = AccessRule(agent_keys=["agent"], admin_keys=["admin"])
    assert rule.denial("POST", CHAT, headers("agent")) is None
    assert rule.denial("POST", CHAT, headers("admin")) is None
    assert rule.denial("POST", CHAT, headers("other")) is not None
    assert rule.denial("POST", CHAT, {"x-api-key": "agent"}) is None
    assert rule.denial("POST", CHAT, {"authorization": "Bearer sk-heddle-run", "x-api-key": "agent"}) is None
    assert rule.denial("POST", CHAT, {"authorization": "Basic agent"}) is not None


def test_operators_routes_are_closed_when_only_agents_have_keys() -> None:
    denial = AccessRule(agent_keys=["agent"]).denial("GET", "/admin/v1/policy", headers("agent"))
    assert denial is not None
    assert denial.status == 403


def test_liveness_needs_no_key() -> None:
    rule = AccessRule(agent_keys=["agent"], admin_keys=["admin"])
    assert rule.denial("GET", "/health", {}) is None
    assert rule.denial("GET", "/ready", {}) is None


async def test_keys_are_asked_for_over_the_wire(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker, api_keys=["agent"], admin_keys=["admin"])
    refused = await gateway.chat()
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.headers["x-request-id"]
    assert (await gateway.chat(headers=headers("agent"))).status_code == 200
    for path in OPERATORS:
        assert (await gateway.client.get(path, headers=headers("agent"))).status_code == 401
    assert (await gateway.client.get("/admin/v1/policy", headers=headers("admin"))).status_code == 200
    assert (await gateway.client.get("/health")).status_code == 200
    assert len(worker.received) == 1


async def test_a_crafted_host_does_not_open_a_route(new_gateway: Any) -> None:
    gateway = await new_gateway(api_keys=["agent"], admin_keys=["admin"])
    answer = await gateway.client.get("/admin/v1/policy", headers={"host": "localhost/health#@x"})
    assert answer.status_code == 400
    answer = await gateway.client.get("/admin/v1/policy", headers={"host": "health"})
    assert answer.status_code == 401


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_the_data_path_takes_post_only(gateway: Any, method: str) -> None:
    answer = await gateway.client.request(method, CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_unknown_paths_are_404_in_the_shape_clients_read(gateway: Any) -> None:
    answer = await gateway.client.get("/v1/nothing")
    assert answer.status_code == 404
    said = answer.json()["error"]
    assert said["type"] == "not_found_error"
    assert said["message"] == "GET /v1/nothing: Not Found. GET /docs shows the routes."
    assert answer.headers["x-request-id"]


async def test_preflights_pass_without_a_key_and_a_401_can_be_read(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(
        worker, api_keys=["agent"], admin_keys=["admin"], cors_origins=["https://ui.example"]
    )
    origin = {"origin": "https://ui.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = await gateway.client.options("/t/x" + CHAT, headers=origin | asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://ui.example"
    refused = await gateway.chat(headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://ui.example"
    admin = await gateway.client.get("/admin/v1/policy", headers=origin | headers("admin"))
    assert "access-control-allow-origin" not in admin.headers


async def test_a_base_url_without_v1_and_a_header_of_the_operators_own(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker, session_headers=["X-Run-Id"])
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    answer = await gateway.client.post("/chat/completions", json=body, headers={"x-run-id": "run-7"})
    assert answer.status_code == 200
    assert answer.headers["x-heddle-trajectory-id"] == "run-7"
    assert answer.headers["x-heddle-trajectory-source"] == "operator"


async def test_a_request_that_is_not_understood_makes_no_step(gateway: Any, worker: Any) -> None:
    bad = await gateway.client.post(CHAT, content=b"{nope")
    assert bad.status_code == 400
    assert bad.json()["error"]["type"] == "invalid_request_error"
    control = await gateway.chat(headers={"X-Heddle-Trajectory-Id": "x" * 300})
    assert control.status_code == 400
    assert "x-heddle-trajectory-id" in control.json()["error"]["message"].lower()
    assert worker.received == []
    assert gateway.parts.driver.stats()["steps_arrived_total"] == 0
    assert 'heddle_refused_requests_total{status="400"} 2.0' in (await gateway.client.get("/metrics")).text


async def test_bodies_over_the_limit_are_413_and_codings_are_decoded(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker, max_body_bytes=10_000)
    large = await gateway.chat("x" * 20_000)
    assert large.status_code == 413
    assert "10000 bytes" in large.json()["error"]["message"]
    packed = gzip.compress(b'{"model":"test-model","messages":[{"role":"user","content":"hi"}]}')
    good = await gateway.client.post(CHAT, content=packed, headers={"content-encoding": "gzip"})
    assert good.status_code == 200
    assert worker.received[0].json()["messages"][0]["content"] == "hi"
    assert worker.received[0].header("content-encoding") is None
    twice = gzip.compress(packed)
    for codings in ([("content-encoding", "gzip")] * 2, [("content-encoding", "gzip, gzip")]):
        assert (await gateway.client.post(CHAT, content=twice, headers=codings)).status_code == 200
        assert worker.received[-1].json()["messages"][0]["content"] == "hi"
    strange = await gateway.client.post(CHAT, content=b"x", headers={"content-encoding": "br"})
    assert strange.status_code == 415


async def test_keep_alive_lets_a_connection_be_used_again_and_pipelined(gateway: Any, worker: Any) -> None:
    body = b'{"model":"test-model","messages":[{"role":"user","content":"hi"}]}'
    one = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(one + one)
    for _ in range(2):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def test_headers_that_never_end_are_cut_off(gateway: Any) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-long: ")
    answer = asyncio.create_task(reader.readline())
    for _ in range(20):
        writer.write(b"y" * 65536)
        await asyncio.sleep(0)
    assert (await answer).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_a_large_body_is_not_taken_for_headers(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker, policy={"admission": "unlimited"})
    for _ in range(3):
        assert (await gateway.chat("x" * 2_000_000)).status_code == 200
    assert len(worker.received[0].json()["messages"][0]["content"]) == 2_000_000


async def test_the_access_log_is_one_json_line_a_step_when_wanted(
    new_gateway: Any, worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await new_gateway(worker, access_log=True)
    with caplog.at_level("INFO", logger="heddle.steps"):
        await gateway.chat(headers={"X-Heddle-Trajectory-Id": "run"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "heddle.steps"]
    assert json.loads(line)["trajectory_id"] == "run"
    assert json.loads(line)["outcome"] == "done"
