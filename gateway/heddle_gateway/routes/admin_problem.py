"""Errors of the admin API as problem JSON (RFC 9457): what is wrong, which field, what to do.

Routes raise `AdminProblem`; `ProblemRoute` renders it, and what FastAPI and the history store raise, once. It
also refuses query parameters that a route does not have: a filter that is misspelt must not list everything.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from heddle_contracts.admin import Problem

from heddle_gateway.store.engine import StoreError

Problems = dict[int | str, dict[str, Any]]
SEND_JSON: Final = "Send a JSON object with content-type: application/json."


def problems(**meanings: str) -> Problems:
    """OpenAPI of the answers that are problems: status_404="no such worker"."""
    return {
        int(status.removeprefix("status_")): {
            "model": Problem,
            "description": meaning,
            "content": {"application/problem+json": {}},
        }
        for status, meaning in meanings.items()
    }


class AdminProblem(Exception):
    """An answer that is not what was asked for."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        field: str | None = None,
        allowed: Sequence[Any] | None = None,
        fix: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = {"retry-after": str(retry_after_s)} if retry_after_s is not None else None
        self.problem = Problem(
            title=status.phrase,
            status=status.value,
            detail=detail,
            field=field,
            allowed=list(allowed) if allowed is not None else None,
            fix=fix,
        )


def not_a_cursor(fix: str = "Send next_cursor of the last page as it came.") -> AdminProblem:
    """Of a text that no page of this list ended with."""
    return AdminProblem(
        HTTPStatus.UNPROCESSABLE_ENTITY, "cursor: not a cursor of this list", field="cursor", fix=fix
    )


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=headers,
    )


def invalid_request(error: RequestValidationError) -> Problem:
    """The first fault pydantic found, in the words of the API. A field that is not known comes before one
    that is missing: it may be that one, misspelt.
    """
    faults = error.errors()
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    if first["type"] == "json_invalid":
        return AdminProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}",
            field="body",
            fix=SEND_JSON,
        ).problem
    place, *path = first["loc"]
    # Of a parameter that is sent more than once, which one it was says nothing.
    named = path if place == "body" else path[:1]
    field = ".".join(str(part) for part in named) or str(place)
    allowed = None
    if first["type"] in ("enum", "literal_error"):
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
    return AdminProblem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{field}: {first['msg']}",
        field=field,
        allowed=allowed,
        fix=SEND_JSON if place == "body" and not path else _fix(first, field),
    ).problem


def _fix(fault: Mapping[str, Any], field: str) -> str:
    if fault["type"] == "extra_forbidden":
        return f"Leave {field} out."
    if fault["type"] == "missing":
        return f"Send {field}."
    if fault["type"] in ("enum", "literal_error"):
        return "Send one of the allowed values."
    wanted = re.fullmatch(r"\w+ should (be|have) (.+)", fault["msg"])
    if wanted is None:
        return f"Send another {field}."
    if wanted[1] == "have":
        return f"Send {field} with {wanted[2]}."
    return (
        f"Send {field} as {wanted[2]}."
        if wanted[2].startswith(("a ", "an "))
        else f"Send {field} {wanted[2]}."
    )


def _query_parameters(of: Dependant) -> Iterator[str]:
    """Names that a route reads, also through what it depends on."""
    yield from (one.alias for one in of.query_params)
    for below in of.dependencies:
        yield from _query_parameters(below)


def _refuse_unknown(sent: Iterable[str], parameters: Sequence[str]) -> None:
    for name in sent:
        if name not in parameters:
            raise AdminProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"{name[:200]}: there is no such parameter",
                field=name[:200],
                allowed=parameters,
                fix="Send one of the allowed parameters." if parameters else "Send no parameters.",
            )


class ProblemRoute(APIRoute):
    """A route of the admin API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        parameters = sorted(_query_parameters(self.dependant))

        async def handle(request: Request) -> Response:
            try:
                _refuse_unknown(request.query_params, parameters)
                return await handler(request)
            except AdminProblem as error:
                return problem_response(error.problem, error.headers)
            except RequestValidationError as error:
                return problem_response(invalid_request(error))
            except StoreError as error:
                unavailable = AdminProblem(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    str(error),
                    fix="Requests are served meanwhile; look at history in GET /admin/v1/stats.",
                )
                return problem_response(unavailable.problem, {"retry-after": "5"})

        return handle
