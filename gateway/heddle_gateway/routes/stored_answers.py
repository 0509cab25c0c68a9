"""``/v1/responses/{id}``: asked of the worker that keeps the answer, word for word."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from heddle_gateway.dialects.errors import ApiError, wrapped
from heddle_gateway.fleet.errors import FleetError
from heddle_gateway.fleet.events import WorkerEndpoint
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.upstream.headers import worker_line

TIMEOUT_S = 30.0


class Workers(Protocol):
    """The fleet (fleet.registry.Fleet)."""

    def endpoints(self) -> Sequence[WorkerEndpoint]: ...
    def asking_endpoint(self, endpoint: WorkerEndpoint, timeout_s: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class StoredDeps:
    """What these routes look at."""

    fleet: Workers
    stored: StoredAnswers


def stored_router(deps: StoredDeps) -> APIRouter:
    """GET and DELETE of a response, its cancel and its input items."""
    router = APIRouter(tags=["responses"])

    def passing(method: str, rest: str) -> Callable[[str, Request], Awaitable[Response]]:
        async def ask(response_id: str, request: Request) -> Response:
            return await _ask(deps, response_id, method, rest, request)

        return ask

    for method, rest, summary in (
        ("GET", "", "A stored response"),
        ("DELETE", "", "Delete a stored response, where its engine can"),
        ("POST", "/cancel", "Cancel a response, where its engine can"),
        ("GET", "/input_items", "What a stored response answered, where its engine can say"),
    ):
        router.add_api_route(
            f"/v1/responses/{{response_id}}{rest}",
            passing(method, rest),
            methods=[method],
            summary=summary,
            name=f"{method.lower()}_response{rest.replace('/', '_')}",
            response_class=Response,
        )
    return router


async def _ask(deps: StoredDeps, response_id: str, method: str, rest: str, request: Request) -> Response:
    holder = deps.stored.holder(response_id)
    if holder is None:
        message = f"No worker of this fleet has the response {response_id[:100]!r}."
        return _refused(ApiError(404, message, code="response_not_found", param="response_id"))
    found = [one for one in deps.fleet.endpoints() if one.worker_id == holder.worker_id]
    if not found:
        message = f"The worker {holder.name}, which keeps this response, does not answer now."
        return _refused(ApiError(503, message, code="no_worker"))
    asking = deps.fleet.asking_endpoint(found[0], TIMEOUT_S)
    params = dict(request.query_params) or None
    try:
        reply = await asking.request(
            method, f"/v1/responses/{quote(response_id, safe='')}{rest}", params=params
        )
    except FleetError as error:
        return _refused(ApiError(504, f"The worker {holder.name} did not answer: {error}", code="timed_out"))
    body = reply.body if reply.status < 400 else wrapped(reply.status, reply.body)
    return Response(body, reply.status, {**_worker(holder.name), "content-type": "application/json"})


def _worker(name: str) -> dict[str, str]:
    line, _, value = worker_line(name).decode("latin-1").strip().partition(": ")
    return {line: value}


def _refused(fault: ApiError) -> Response:
    headers = {name.decode(): value.decode() for name, value in fault.headers()}
    return Response(fault.body(), fault.status, headers)
