"""Errors of the admin API as problem JSON (RFC 9457): what is wrong, which field, what to do.

Routes raise `AdminProblem`; `ProblemRoute` renders it, and what FastAPI and the history store raise, once.
"""

import re
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from heddle_contracts.admin import Problem

from heddle_gateway.store.engine import StoreError

Problems = dict[int | str, dict[str, Any]]


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


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=headers,
    )


def invalid_request(error: RequestValidationError) -> Problem:
    """The first fault pydantic found, in the words of the API."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return AdminProblem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}",
            fix="Send a JSON object with content-type: application/json.",
        ).problem
    place, *path = first["loc"]
    field = ".".join(str(part) for part in path) or str(place)
    allowed = None
    if first["type"] in ("enum", "literal_error"):
        allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
    fix = {
        "extra_forbidden": f"Leave {field} out.",
        "missing": f"Send {field}.",
        "enum": "Send one of the allowed values.",
        "literal_error": "Send one of the allowed values.",
    }.get(first["type"])
    bound = first["msg"].removeprefix("Input should be ")
    if fix is None and bound != first["msg"]:
        fix = f"Send {field} as {bound}." if bound.startswith(("a ", "an ")) else f"Send {field} {bound}."
    if not path and place == "body":
        fix = "Send a JSON object with content-type: application/json."
    return AdminProblem(
        HTTPStatus.UNPROCESSABLE_ENTITY, f"{field}: {first['msg']}", field=field, allowed=allowed, fix=fix
    ).problem


class ProblemRoute(APIRoute):
    """A route of the admin API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
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
