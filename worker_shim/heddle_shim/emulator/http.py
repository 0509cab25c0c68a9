"""The ASGI app of one emulated worker."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from heddle_shim.emulator.generation_routes import generation_endpoints
from heddle_shim.emulator.ops_routes import OpsRoutes
from heddle_shim.emulator.worker import EmulatedWorker


def worker_app(worker: EmulatedWorker, shim_routes: Sequence[Route]) -> Starlette:
    """Routes of SGLang's HTTP server that Heddle and its clients use, and those of the worker's shim."""
    routes = [
        Route(path, endpoint, methods=["POST"]) for path, endpoint in generation_endpoints(worker).items()
    ]
    return Starlette(
        routes=[*routes, *OpsRoutes(worker).routes(), *shim_routes],
        exception_handlers={HTTPException: _no_such_route},
    )


async def _no_such_route(_: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods, as FastAPI answers them."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)
