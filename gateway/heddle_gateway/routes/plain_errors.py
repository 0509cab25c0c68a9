"""What FastAPI itself refuses, in the shape that the caller reads: problem JSON under ``/admin``, else an
error of the API family.
"""

from http import HTTPStatus

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from heddle_contracts.admin import Problem
from starlette.exceptions import HTTPException

from heddle_gateway.dialects.errors import Shape, error_body, shape_for
from heddle_gateway.routes.admin_problem import SEND_JSON, AdminProblem, invalid_request, problem_response

ADMIN = "/admin/"


async def plain_error(request: Request, error: Exception) -> Response:
    """404, 405 and their like."""
    assert isinstance(error, HTTPException)
    path, status = request.url.path, HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if path.startswith(ADMIN):
        fix = "GET /docs shows the routes." if status in (404, 405) else SEND_JSON
        problem = AdminProblem(status, f"{request.method} {path[:200]}: {error.detail}", fix=fix).problem
        return problem_response(problem, headers)
    said = f"{request.method} {path[:200]}: {error.detail}."
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        said += " GET /docs shows the routes."
    return Response(error_body(shape_for(path), status, said), status, headers, "application/json")


async def invalid_request_error(request: Request, error: Exception) -> Response:
    """A parameter or a body that a route does not take."""
    assert isinstance(error, RequestValidationError)
    problem = invalid_request(error)
    if request.url.path.startswith(ADMIN):
        return problem_response(problem)
    shape = Shape.ANTHROPIC if "anthropic-version" in request.headers else shape_for(request.url.path)
    body = error_body(shape, problem.status, _in_words(problem), problem.field, "invalid_value")
    return Response(body, problem.status, media_type="application/json")


def _in_words(problem: Problem) -> str:
    allowed = f"Allowed: {', '.join(map(str, problem.allowed))}." if problem.allowed else None
    return " ".join(part for part in (f"{problem.detail}.", allowed, problem.fix) if part)
