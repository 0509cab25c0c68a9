"""Ids that are kept in another form are found by what their client sent, and by what the answer named."""

from typing import Any
from urllib.parse import quote

import pytest

SENT = ("plain-1", "task 7", "django|3", "a,b", "\xe9", "50%", "a%20b", "x#1", "[1]", "harbor/task:0")


@pytest.mark.parametrize("sent", SENT)
async def test_an_id_is_found_as_it_was_sent(new_gateway: Any, worker: Any, sent: str) -> None:
    gateway = await new_gateway(worker)
    answer = await gateway.chat(headers={"x-session-id": sent.encode()})
    kept = answer.headers["x-heddle-trajectory-id"]
    for asked in (sent, kept):
        shown = await gateway.client.get(f"/admin/v1/trajectories/{quote(asked, safe='')}")
        assert shown.json()["trajectory"]["trajectory_id"] == kept, asked
        moves = await gateway.client.get("/admin/v1/migrations", params={"trajectory_id": asked})
        assert moves.status_code == 200
    finished = await gateway.client.post("/finish_session", params={"session_id": sent})
    assert finished.json()["finished"] is True
    assert len(gateway.parts.driver.directory) == 0


async def test_an_id_that_cannot_be_is_not_found(new_gateway: Any, worker: Any) -> None:
    gateway = await new_gateway(worker)
    for asked in ("%20", "x" * 5000):
        assert (await gateway.client.get(f"/admin/v1/trajectories/{asked}")).status_code == 404, asked
