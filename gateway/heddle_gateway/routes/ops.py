"""What is asked of the gateway itself: models, liveness, readiness, metrics.

Invariants: ``/health`` touches nothing but this process, so a busy gateway is not killed by its probe;
``/ready`` does not depend on the history database, since requests are served without it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from heddle_gateway.dialects.errors import Shape, error_body

NO_WORKER_RETRY_AFTER_S = 5

AnthropicVersion = Annotated[
    str | None, Header(description="Anthropic's clients send it, and read lists in another shape.")
]


class Workers(Protocol):
    """The fleet (fleet.registry.Fleet)."""

    def active(self) -> int: ...
    def stats(self) -> Mapping[str, int]: ...


class Models(Protocol):
    """What the fleet serves (fleet.served_models.ServedModels)."""

    def listed(self) -> Mapping[str, tuple[int, ...]]: ...
    def context_length(self, worker_ids: Iterable[int]) -> int | None: ...
    def aside(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class OpsDeps:
    """What these routes look at. ``started_at``: Unix time; ``history_state``: the history writer's word;
    ``role``: (role, leader, epoch, alone_because), see Readiness.
    """

    fleet: Workers
    models: Models
    history_state: Callable[[], str]
    planner_state: Callable[[], str]
    live_state: Callable[[], str]
    role: Callable[[], tuple[str, str | None, int, str | None]]
    is_paused: Callable[[], bool]
    metrics: Callable[[], tuple[bytes, str]]
    started_at: float


class ModelCard(BaseModel):
    """OpenAI's model object."""

    model_config = ConfigDict(frozen=True)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "heddle"
    workers: int = Field(description="Serving workers that list this model.")
    max_model_len: int | None = Field(
        default=None,
        description="Tokens of a prompt with its answer that each of them takes, where they say; as vLLM.",
    )


class ModelList(BaseModel):
    """OpenAI's list object."""

    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[ModelCard]


class AnthropicModel(BaseModel):
    """Anthropic's model object."""

    model_config = ConfigDict(frozen=True)

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str = Field(description="RFC 3339.")


class AnthropicModels(BaseModel):
    """A page of Anthropic's list."""

    model_config = ConfigDict(frozen=True)

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Readiness(BaseModel):
    """Whether steps can run now, and how the parts are."""

    model_config = ConfigDict(frozen=True)

    ready: bool
    workers: dict[str, int] = Field(description="How many are in each state.")
    aside: dict[str, str] = Field(
        description="Workers that get no steps because they serve another model, and what to do."
    )
    planner: str
    history: str
    paused: bool = Field(
        description="An operator paused generation: steps wait until it goes on, and a probe need do nothing."
    )
    live_state: str = Field(
        description="memory: in this process alone; following: copied to Redis; local: Redis is away; "
        "elsewhere: the leader copies it."
    )
    role: str = Field(
        description="leader: decides, for others too; follower: asks the leader; alone: decides for itself; "
        "seeking: the leader is away, and another is being found."
    )
    leader: str | None = Field(description="Name of the gateway that decides; none without a Redis.")
    alone_because: str | None = Field(
        description="Why this gateway decides for itself although it has a Redis: others may decide too."
    )
    epoch: int = Field(description="Of this gateway's own last reign; 0 before its first.")


def ops_router(deps: OpsDeps) -> APIRouter:
    """``/v1/models``, ``/health``, ``/ready``, ``/metrics``."""
    router = APIRouter()

    def cards() -> list[ModelCard]:
        created = int(deps.started_at)
        return [
            ModelCard(
                id=name, created=created, workers=len(ids), max_model_len=deps.models.context_length(ids)
            )
            for name, ids in sorted(deps.models.listed().items())
        ]

    def anthropic(card: ModelCard) -> AnthropicModel:
        at = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return AnthropicModel(id=card.id, display_name=card.id, created_at=at)

    @router.get(
        "/v1/models",
        tags=["models"],
        summary="Models of all serving workers; in Anthropic's shape for its clients",
        response_model=ModelList | AnthropicModels,
    )
    async def list_models(
        anthropic_version: AnthropicVersion = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Any:
        if anthropic_version is None:
            return ModelList(data=cards())
        ids = [card.id for card in cards()]
        start = ids.index(after_id) + 1 if after_id in ids else 0
        end = ids.index(before_id) if before_id in ids else len(ids)
        # Before an id is read backwards: the page is the one next to it.
        page = cards()[start:end][-limit:] if before_id in ids else cards()[start:end][:limit]
        return AnthropicModels(
            data=[anthropic(card) for card in page],
            has_more=len(page) < max(0, end - start),
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
        )

    @router.get(
        "/v1/models/{model:path}",
        tags=["models"],
        summary="One model",
        response_model=ModelCard | AnthropicModel,
    )
    async def get_model(model: str, anthropic_version: AnthropicVersion = None) -> Any:
        for card in cards():
            if card.id == model:
                return card if anthropic_version is None else anthropic(card)
        shape = Shape.OPENAI if anthropic_version is None else Shape.ANTHROPIC
        message = f"The model {model[:200]!r} does not exist here; GET /v1/models lists them."
        body = error_body(shape, 404, message, "model", "model_not_found")
        return Response(body, 404, media_type="application/json")

    @router.get("/health", tags=["operations"], summary="Liveness: this process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready", tags=["operations"], summary="Readiness: a step can run", response_model=Readiness)
    async def ready(response: Response) -> Readiness:
        active = deps.fleet.active()
        role, leader, epoch, alone_because = deps.role()
        if not active:
            response.status_code = 503
            response.headers["retry-after"] = str(NO_WORKER_RETRY_AFTER_S)
        return Readiness(
            ready=active > 0,
            workers={
                name.removeprefix("workers_"): number
                for name, number in deps.fleet.stats().items()
                if name.startswith("workers_")
            },
            aside=dict(deps.models.aside()),
            planner=deps.planner_state(),
            history=deps.history_state(),
            paused=deps.is_paused(),
            live_state=deps.live_state(),
            role=role,
            leader=leader,
            alone_because=alone_because,
            epoch=epoch,
        )

    @router.get("/metrics", tags=["operations"], summary="Prometheus metrics")
    async def metrics() -> Response:
        body, media_type = deps.metrics()
        return Response(body, media_type=media_type)

    return router
