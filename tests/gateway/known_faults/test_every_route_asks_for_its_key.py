"""With keys configured nothing but liveness answers a caller without one: deny by default, each route."""

from typing import Any

import pytest

AGENT = "agents-key"
ADMIN = "operators-key"
OPEN = {"/health", "/ready"}
AGENTS = {
    "/v1/models",
    "/v1/models/{model}",
    "/v1/chat/completions",
    "/v1/completions",
    "/generate",
    "/finish_session",
    "/v1/messages",
    "/v1/responses",
}
DATA_PATH = ["/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages", "/v1/responses"]
# Not in the OpenAPI document, or not of this gateway at all; a spelling that slips past a check on the path.
BESIDE = [
    "/docs",
    "/openapi.json",
    "/redoc",
    "/metrics",
    "/admin",
    "/admin/v1",
    "/nothing",
    "/ADMIN/v1/policy",
    "//admin/v1/policy",
    "/admin/v1/policy/",
    "/admin//v1/policy",
    "/v1/../admin/v1/policy",
    "/v1/models/../../admin/v1/policy",
    "/health/../admin/v1/policy",
    "/%61dmin/v1/policy",
    "/admin%2fv1%2fpolicy",
    "/t/x/admin/v1/policy",
    "/health/x",
    "/health;x",
]


async def status(connect: Any, url: str, make_request: Any, method: str, path: str, key: str | None) -> int:
    line = await connect(url)
    headers = () if key is None else (f"authorization: Bearer {key}",)
    await line.send(make_request(b"{}", path, method=method, headers=headers))
    found: int = (await line.answer())[0]
    line.leave()
    return found


def routes_of(openapi: Any) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, item in openapi["paths"].items() for method in item]


async def test_without_a_key_nothing_but_liveness_answers(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any
) -> None:
    gateway = await new_gateway(worker, api_keys=[AGENT], admin_keys=[ADMIN])
    openapi = (await gateway.client.get("/openapi.json", headers={"authorization": f"Bearer {ADMIN}"})).json()
    routes = routes_of(openapi)
    assert len(routes) > 20
    routes += [("POST", path) for path in DATA_PATH]
    routes += [(method, path) for path in BESIDE for method in ("GET", "PUT", "POST")]
    for method, path in routes:
        if path in OPEN:
            continue
        for key in (None, "wrong", ""):
            assert await status(connect, gateway.url, make_request, method, path, key) == 401, (method, path)
        if path.startswith(("/v1/models/", "/v1/responses/")):
            # No path leads out of it: what follows is the name of a model or of a stored answer.
            assert await status(connect, gateway.url, make_request, method, path, AGENT) in (404, 405), path
        elif path not in AGENTS:
            assert await status(connect, gateway.url, make_request, method, path, AGENT) == 401, (
                method,
                path,
            )
    assert worker.received == []


@pytest.mark.parametrize("path", DATA_PATH)
async def test_agents_reach_the_data_path_by_any_of_its_names_with_their_key_only(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any, path: str
) -> None:
    gateway = await new_gateway(worker, api_keys=[AGENT])
    for name in (path, f"{path}/", f"/t/x{path}", f"/sessions/x{path}", f"/t/..%2f..%2fhealth{path}"):
        assert await status(connect, gateway.url, make_request, "POST", name, None) == 401, name
        assert await status(connect, gateway.url, make_request, "POST", name, AGENT) == 200, name


async def test_operators_routes_are_closed_while_they_have_no_key(
    new_gateway: Any, worker: Any, connect: Any, make_request: Any
) -> None:
    gateway = await new_gateway(worker, api_keys=[AGENT])
    for method, path in (("GET", "/admin/v1/workers"), ("POST", "/add_worker"), ("POST", "/abort_request")):
        for key in (None, AGENT, ADMIN):
            assert await status(connect, gateway.url, make_request, method, path, key) == 403, path
