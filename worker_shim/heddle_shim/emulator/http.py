"""The ASGI app of one emulated worker."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from heddle_shim.emulator.generation_routes import generation_endpoints
from heddle_shim.emulator.ops_routes import OpsRoutes
from heddle_shim.emulator.stored_routes import stored_routes
from heddle_shim.emulator.worker import EmulatedWorker


class WorkerApp:
    """Steps go straight to their endpoint, all else through Starlette: its layers took a sixth of a worker's
    processor time.
    """

    def __init__(self, worker: EmulatedWorker, others: Sequence[Route]) -> None:
        self._generating = generation_endpoints(worker)
        routes = [
            Route(path, endpoint, methods=["POST"]) for path, endpoint in self._generating.items()
        ]  # for the wrong method
        self._all: ASGIApp = Starlette(
            routes=[*routes, *others], exception_handlers={HTTPException: _no_such_route}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._generating.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self._all(scope, receive, send)


def worker_app(worker: EmulatedWorker, shim_routes: Sequence[Route]) -> WorkerApp:
    """Routes of SGLang's HTTP server that Heddle and its clients use, and those of the worker's shim."""
    return WorkerApp(worker, [*stored_routes(worker), *OpsRoutes(worker).routes(), *shim_routes])


async def _no_such_route(_: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods, as FastAPI answers them."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)
