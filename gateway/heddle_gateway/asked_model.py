"""A request for a model that is not served here is refused before it is a step."""

from collections.abc import Iterable
from typing import Final, Protocol

from heddle_gateway.asgi.request_body import ClientError

NAMED: Final = 8
"""Served models that a refusal names."""


class Models(Protocol):
    """Names under which the fleet serves its model (fleet.served_models.ServedModels)."""

    def knows(self, model: str | None) -> bool: ...
    async def look_for(self, model: str) -> bool: ...
    def listed(self) -> Iterable[str]: ...


async def require_model(models: Models, model: str | None) -> None:
    """Raises ClientError (404) for a name that no worker goes by, also when asked once more."""
    if not model or models.knows(model) or await models.look_for(model):
        return
    served = sorted(models.listed())
    more = ", ..." if len(served) > NAMED else ""
    raise ClientError(
        404,
        f"The model {model[:200]!r} is not served here: send {', '.join(map(repr, served[:NAMED]))}{more}"
        " (GET /v1/models lists them).",
        param="model",
        code="model_not_found",
    )
