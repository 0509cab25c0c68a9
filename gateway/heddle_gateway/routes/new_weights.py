"""New weights for every engine by one call, where engines read them from a disk that all of them see.

Trainers that take the router for an engine (AReaL), and loops that keep no list of engines, call it. Weights
that come by NCCL need another rank in each engine: such trainers ask ``GET /workers`` and call them.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.params import Depends
from fastapi.responses import Response

from heddle_gateway.fleet.fanout import fan_out, overall_status
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.routes.registry import fan_out_answer


def new_weights_router(fleet: Fleet, dependencies: Sequence[Depends] = ()) -> APIRouter:
    """The operator's. ``dependencies``: the admin key's check."""
    router = APIRouter(tags=["worker registry"], dependencies=list(dependencies))

    @router.post("/update_weights_from_disk", response_model=None)
    async def update_weights_from_disk(body: dict[str, Any]) -> Response:
        """SGLang's, sent to every engine as it is. Steps go on meanwhile: pause generation before."""
        replies = await fan_out(
            fleet,
            "/update_weights_from_disk",
            # Those that pause are SGLang's kind.
            needs=lambda has: has.pause,
            body=body,
            timeout_s=fleet.tuning.weights_timeout_s,
        )
        return fan_out_answer(replies, overall_status(replies))

    return router
