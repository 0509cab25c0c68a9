"""The shim's routes beside those of migrations: priorities, warming, residency, the last report.

POST /shim/v1/priorities   new priorities of queued requests; 501 where the engine has no plugin
POST /shim/v1/warm         loads a prefix from the page store into the engine; 501 likewise
POST /shim/v1/residency    where the pages of a prefix lie
GET  /shim/v1/report       what the gateway is told of the engine
"""

from typing import TypeVar

from heddle_contracts.admin import Problem
from heddle_contracts.shim import (
    PrefixQuery,
    Priorities,
    PrioritiesSet,
    Residency,
    Warmed,
)
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from heddle_shim.plugin_client import PluginRefused, PluginSilent
from heddle_shim.shim import Shim

WARM_S = 30.0

Body = TypeVar("Body", bound=BaseModel)


class Refused(Exception):
    """Answered with a problem of this status."""

    def __init__(self, status: int, title: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(title=title, status=status, detail=detail, field=field)


class ShimRoutes:
    """Handlers over one shim."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim

    def routes(self) -> list[Route]:
        return [
            Route("/shim/v1/priorities", self.priorities, methods=["POST"]),
            Route("/shim/v1/warm", self.warm, methods=["POST"]),
            Route("/shim/v1/residency", self.residency, methods=["POST"]),
            Route("/shim/v1/report", self.report, methods=["GET"]),
        ]

    async def priorities(self, request: Request) -> Response:
        try:
            asked = await _body(request, Priorities)
            applied, remembered = await self._shim.set_priority(asked.priorities)
        except (Refused, PluginRefused, PluginSilent) as error:
            return _refusal(error)
        return _json(PrioritiesSet(applied=applied, remembered=remembered))

    async def warm(self, request: Request) -> Response:
        try:
            prefix = await self._shim.prefix(await _body(request, PrefixQuery))
            done = await self._shim.warm(prefix, WARM_S)
        except (Refused, PluginRefused, PluginSilent) as error:
            return _refusal(error)
        return _json(Warmed(had=done.had, loaded=done.loaded))

    async def residency(self, request: Request) -> Response:
        try:
            found: Residency = self._shim.residency(
                await self._shim.prefix(await _body(request, PrefixQuery))
            )
        except (Refused, PluginRefused, PluginSilent) as error:
            return _refusal(error)
        return _json(found)

    async def report(self, _: Request) -> Response:
        report = self._shim.last_report
        if report is None:
            return _refusal(Refused(503, "Service Unavailable", "the engine has not been asked yet"))
        return _json(report)


async def _body(request: Request, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(await request.body())
    except ClientDisconnect:
        raise Refused(400, "Bad Request", "the body did not come") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        raise Refused(422, "Unprocessable Content", f"{field or 'body'}: {first['msg']}", field) from error


def _refusal(error: Refused | PluginRefused | PluginSilent) -> Response:
    if isinstance(error, PluginRefused):
        error = Refused(409, "Conflict", str(error))
    elif isinstance(error, PluginSilent):
        error = Refused(504, "Gateway Timeout", str(error))
    return Response(
        error.problem.model_dump_json(exclude_none=True),
        status_code=error.problem.status,
        media_type="application/problem+json",
    )


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
