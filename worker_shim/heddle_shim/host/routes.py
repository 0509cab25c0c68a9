"""The host's routes: what runs here, start one, stop one.

GET    /host/v1/status          GPUs and engines
POST   /host/v1/engines         launches one; 409 where the GPUs are not free
GET    /host/v1/engines/{id}    one engine
DELETE /host/v1/engines/{id}    drains and ends it (?force=true: at once); 409 while it starts
"""

import hmac
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from heddle_contracts.admin import Problem
from heddle_contracts.fleet import StartEngine
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from heddle_shim.host.gpus import NoRoom
from heddle_shim.host.host import Host, NotNow, UnknownEngine

MAX_BODY_BYTES = 65_536
Handler = Callable[[Request], Awaitable[Response]]


class HostRoutes:
    """Handlers over one host. ``key``: bearer token that callers must send; none lets all in."""

    def __init__(self, host: Host, key: str | None) -> None:
        self._host = host
        self._key = key

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/host/v1/status", self._guarded(self.status), methods=["GET"]),
                Route("/host/v1/engines", self._guarded(self.start), methods=["POST"]),
                Route("/host/v1/engines/{id}", self._guarded(self.show), methods=["GET"]),
                Route("/host/v1/engines/{id}", self._guarded(self.stop), methods=["DELETE"]),
            ]
        )

    async def status(self, _: Request) -> Response:
        return _json(self._host.status())

    async def start(self, request: Request) -> Response:
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            return _problem(413, "the body is too long")
        try:
            asked = StartEngine.model_validate_json(body or b"{}")
        except ValidationError as error:
            first = error.errors()[0]
            return _problem(422, first["msg"], ".".join(map(str, first["loc"])) or "body")
        return _json(self._host.start(asked.degree, asked.gpus), 202)

    async def show(self, request: Request) -> Response:
        return _json(self._host.engine(request.path_params["id"]))

    async def stop(self, request: Request) -> Response:
        force = request.query_params.get("force", "false").lower() in {"1", "true", "yes"}
        return _json(self._host.stop(request.path_params["id"], force=force), 202)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
            if self._key is not None and not hmac.compare_digest(given, self._key.encode()):
                return _problem(401, "send the host's key as bearer token (HEDDLE_HOST_KEY)")
            try:
                return await handler(request)
            except UnknownEngine as error:
                return _problem(404, str(error))
            except NoRoom as error:
                return _problem(409, str(error), str(error).partition(":")[0])
            except NotNow as error:
                return _problem(409, str(error))

        return guarded


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def _problem(status: int, detail: str, field: str | None = None) -> Response:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, field=field)
    return Response(problem.model_dump_json(), status, media_type="application/problem+json")
