"""``GET /admin/v1/events``: what the decision core decides and is told, as server-sent events."""

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from heddle_contracts.planning import DecisionEvent, EventKind

from heddle_gateway.live.decision_feed import DecisionFeed, Subscription, TooManyOnlookers
from heddle_gateway.routes.admin_problem import AdminProblem, ProblemRoute, Problems, problems

HEARTBEAT_S: Final = 15.0
EXAMPLE: Final = (
    "event: dispatch\n"
    'data: {"at": 1764000000.1, "kind": "dispatch", "trajectory_id": "swe-4711", "worker": "gpu1:30000",'
    ' "facts": {"step": 17, "level": 31, "priority": 496, "attempt": 1, "reason": "rank"}}\n\n'
)

STREAM: Final[Problems] = {
    200: {
        "description": "An endless stream; a comment every 15 seconds where nothing happens.",
        "content": {"text/event-stream": {"example": EXAMPLE}},
    }
}


def events_router(feed: DecisionFeed, worker_name: Callable[[int], str | None]) -> APIRouter:
    """The route; workers are shown by name."""
    router = APIRouter(prefix="/admin/v1", route_class=ProblemRoute, tags=["events"])

    @router.get(
        "/events",
        summary="Decisions as they are made, as server-sent events",
        response_class=StreamingResponse,
        responses=STREAM | problems(status_422="A bad value.", status_429="Too many are looking on."),
    )
    async def events(
        kind: Annotated[
            list[EventKind] | None, Query(description="Only these; may be given more than once.")
        ] = None,
    ) -> StreamingResponse:
        """A reader that is too slow misses the oldest events and is told how many (``event: missed``)."""
        watching = feed.subscription()
        try:
            subscription = watching.__enter__()
        except TooManyOnlookers as error:
            raise AdminProblem(
                HTTPStatus.TOO_MANY_REQUESTS, "too many are looking on", fix="Close another stream."
            ) from error

        async def stream() -> AsyncIterator[str]:
            try:
                async for text in _told(subscription, frozenset(kind or ()), worker_name):
                    yield text
            finally:
                watching.__exit__(None, None, None)

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    return router


async def _told(
    subscription: Subscription, kinds: frozenset[EventKind], worker_name: Callable[[int], str | None]
) -> AsyncIterator[str]:
    yield ": decisions of the core\n\n"
    while (events := await subscription.take(HEARTBEAT_S)) is not None:
        if subscription.missed:
            yield f'event: missed\ndata: {{"events": {subscription.missed}}}\n\n'
            subscription.missed = 0
        shown = [event for event in events if not kinds or event.kind in kinds]
        yield "".join(_line(event, worker_name) for event in shown) or ":\n\n"


def _line(event: DecisionEvent, worker_name: Callable[[int], str | None]) -> str:
    if event.worker is not None:
        name = worker_name(int(event.worker)) or event.worker
        event = event.model_copy(update={"worker": name})
    return f"event: {event.kind}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"
