"""Routes of the two families that generate nothing: count_tokens, and stored responses."""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation_routes import json_body
from heddle_shim.emulator.messages_reply import count_tokens
from heddle_shim.emulator.worker import EmulatedWorker


def stored_routes(worker: EmulatedWorker) -> list[Route]:
    """As SGLang has them: there is no DELETE, and a response that has ended is not cancelled any more."""

    async def counted(request: Request) -> JSONResponse:
        try:
            body = await json_body(request.scope, request.receive, strict=True)
            return JSONResponse(count_tokens(worker, body))
        except ApiError as error:
            return JSONResponse(error.anthropic(), error.status)

    async def stored(request: Request) -> JSONResponse:
        response_id = request.path_params["response_id"]
        found = worker.stored.get(response_id)
        if found is not None:
            return JSONResponse(found.response)
        error = ApiError(f"Response with id '{response_id}' not found.", 404, "response_id")
        return JSONResponse(error.responses(), 404)

    return [
        Route("/v1/messages/count_tokens", counted, methods=["POST"]),
        Route("/v1/responses/{response_id}", stored, methods=["GET"]),
        Route("/v1/responses/{response_id}/cancel", stored, methods=["POST"]),
    ]
