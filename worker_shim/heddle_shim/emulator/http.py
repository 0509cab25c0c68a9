"""The ASGI app of one emulated worker."""

from starlette.applications import Starlette
from starlette.routing import Route

from heddle_shim.emulator.generation_routes import generation_endpoints
from heddle_shim.emulator.ops_routes import OpsRoutes
from heddle_shim.emulator.worker import EmulatedWorker


def worker_app(worker: EmulatedWorker) -> Starlette:
    """Routes of SGLang's HTTP server that Heddle and its clients use."""
    routes = [
        Route(path, endpoint, methods=["POST"]) for path, endpoint in generation_endpoints(worker).items()
    ]
    return Starlette(routes=[*routes, *OpsRoutes(worker).routes()])
