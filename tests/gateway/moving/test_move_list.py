"""``GET /admin/v1/migrations``: what this process knows laid over history, by pages."""

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from heddle_contracts.migrations import Move, MoveFilter, MoveList, MoveState
from heddle_gateway.routes.admin_migrations import MigrationDeps, MoveControl, Position, migrations_router
from heddle_gateway.store.engine import StoreError


def move(number: int, ended_at: float | None = None, process: str = "new", **changes: Any) -> Move:
    fields: dict[str, Any] = {
        "id": number,
        "process": process,
        "trajectory_id": f"t{number}",
        "tenant": "",
        "from_worker": "w1",
        "to_worker": "w2",
        "state": MoveState.MOVING if ended_at is None else MoveState.LANDED,
        "asked_by": "policy",
        "tokens": 1,
        "ended_at": ended_at,
    }
    return Move.model_validate(fields | changes)


class Past:
    """History, which has not got the newest yet; None is a database that is away."""

    def __init__(self, moves: list[Move]) -> None:
        self.moves: list[Move] | None = moves

    async def page(self, wanted: MoveFilter, after: Position | None, limit: int) -> list[Move]:
        if self.moves is None:
            raise StoreError("the history database cannot be read: away")
        found = [(one.ended_at or 0.0, one.process, one.id) for one in self.moves if wanted.takes(one)]
        places = sorted((place for place in found if after is None or place < after), reverse=True)[:limit]
        return [one for place in places for one in self.moves if (one.ended_at, one.process, one.id) == place]


class Api:
    """The route over HTTP, with what its two sources hold."""

    def __init__(self, client: httpx.AsyncClient, here: list[Move], past: Past) -> None:
        self._client, self.here, self.past = client, here, past

    async def get(self, **params: Any) -> httpx.Response:
        return await self._client.get("/admin/v1/migrations", params=params)

    async def all(self, limit: int, **params: Any) -> list[tuple[str, int]]:
        """(process, id) of all pages."""
        found: list[tuple[str, int]] = []
        while True:
            page = MoveList.model_validate_json((await self.get(limit=limit, **params)).content)
            assert len(page.items) <= limit
            found += [(one.process, one.id) for one in page.items]
            if page.next_cursor is None:
                return found
            params["cursor"] = page.next_cursor


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """Three moves under way, two that ended here of which history has one, and four of an earlier process."""
    ended = [move(4, 2004.0), move(3, 2003.0)]
    here = [move(5), move(6), move(7, state=MoveState.REQUESTED), *ended]
    past = Past([ended[1], *(move(number, 1000.0 + number // 2, process="old") for number in range(4))])
    app = FastAPI()
    deps = MigrationDeps(cast(MoveControl, None), lambda: here, past, list)
    app.include_router(migrations_router(deps))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield Api(client, here, past)


EVERY = [("new", number) for number in (5, 6, 7, 4, 3)] + [("old", number) for number in (3, 2, 1, 0)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 8, 9, 100])
async def test_pages_of_any_size_hold_each_move_once_in_order(api: Api, limit: int) -> None:
    assert await api.all(limit) == EVERY


async def test_filters_hold_for_both_sources_and_all_pages(api: Api) -> None:
    assert await api.all(2, state="landed") == EVERY[3:]
    assert await api.all(2, state="moving") == EVERY[:2]
    assert await api.all(2, trajectory_id="t3") == [("new", 3), ("old", 3)]
    assert await api.all(2, since=1001.0) == EVERY[:7]
    assert await api.all(2, worker="w9") == []


async def test_what_ends_between_two_pages_shifts_nothing(api: Api) -> None:
    first = MoveList.model_validate_json((await api.get(limit=5)).content)
    api.here.insert(3, move(8, 3000.0))
    rest = await api.all(5, cursor=first.next_cursor)
    assert [(one.process, one.id) for one in first.items] + rest == EVERY


async def test_without_the_database_this_processs_moves_are_shown_and_the_answer_says_so(api: Api) -> None:
    api.past.moves = None
    page = MoveList.model_validate_json((await api.get()).content)
    assert [(one.process, one.id) for one in page.items] == EVERY[:5]
    assert "cannot be read" in (page.history or "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cursor", "x"),
        ("cursor", "WzFd"),
        ("cursor", "WzEuMCwibmV3IiwtMV0"),  # [1.0,"new",-1]
        ("cursor", "W05hTiwibmV3IiwxXQ"),  # [NaN,"new",1]
        ("limit", 0),
        ("state", "lost"),
        ("since", "nan"),
        ("asked_by", "nobody"),
    ],
)
async def test_a_bad_value_is_refused_by_field(api: Api, field: str, value: Any) -> None:
    answer = await api.get(**{field: value})
    assert (answer.status_code, answer.json()["field"]) == (422, field)
