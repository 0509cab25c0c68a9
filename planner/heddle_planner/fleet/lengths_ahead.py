"""What there is to generate, as a gateway's admin API tells it: by what runs, or a rollout like the last."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
from heddle_contracts.admin import Phase, TrajectoryPage, TrajectorySummary
from heddle_contracts.rollouts import RolloutList, RolloutTrajectories
from pydantic import BaseModel, ValidationError

from heddle_planner.plan_lengths import Lengths

TIMEOUT_S: Final = 30.0
PAGE: Final = 500
LEAST: Final = 2
"""Trajectories below which there is nothing to divide."""
_LIVE: Final = tuple(one for one in Phase if one not in (Phase.FINISHED, Phase.EXPIRED, Phase.DORMANT))

_Answer = TypeVar("_Answer", bound=BaseModel)


class GatewayError(Exception):
    """The gateway cannot be asked, or answers with a refusal."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """``why``: in words, whose lengths these are."""

    why: str
    lengths: Lengths


class LengthsAhead:
    """Asks one gateway; ``async with``. ``key``: an operator's, where it asks for one."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/admin/v1", headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
        self._ended: set[str] | None = None

    async def __aenter__(self) -> "LengthsAhead":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def look(self) -> Ahead | None:
        """While trajectories run or are announced: what is expected of them. Else, after each rollout: the
        lengths it had, since the next one is taken to be like it. None where neither tells anything new.
        Raises GatewayError.
        """
        rollouts = await self._get("/rollouts", RolloutList)
        ended = {one.id for one in rollouts.items if one.state == "finished"}
        if self._ended is None:
            # Those that ended before the first look: the time to act on them is over.
            self._ended = ended
        news = ended - self._ended
        begun = [one.id for one in rollouts.items if one.waiting]
        running = await self._running(begun)
        if len(running.ids) >= LEAST:
            return Ahead(f"{len(running.ids)} trajectories run or are announced", running)
        self._ended = ended
        newest = next((one for one in rollouts.items if one.id in news), None)
        if newest is None:
            return None
        lengths = await self._lengths_of(newest.id)
        if len(lengths.ids) < LEAST:
            return None
        return Ahead(f"rollout {newest.name or newest.id} has ended", lengths)

    async def _running(self, waiting_in: Sequence[str]) -> Lengths:
        """Of what runs, and of those in these rollouts that wait for their first step."""
        # By phase: history is not looked through. One that goes from phase to phase meanwhile counts once.
        found: dict[tuple[str, str], float] = {}
        for phase in _LIVE:
            async for one in self._trajectories(phase=phase.value):
                if one.predicted_remaining:
                    found[one.tenant, one.trajectory_id] = one.predicted_remaining
        for rollout in waiting_in:
            for member in (await self._members(rollout)).items:
                if member.state == "waiting" and member.predicted_remaining:
                    found[rollout, member.trajectory_id] = member.predicted_remaining
        return _lengths(found)

    async def _lengths_of(self, rollout: str) -> Lengths:
        members = (await self._members(rollout)).items
        return _lengths(
            {(rollout, one.trajectory_id): float(one.output_tokens) for one in members if one.output_tokens}
        )

    async def _members(self, rollout: str) -> RolloutTrajectories:
        return await self._get(f"/rollouts/{quote(rollout, safe='')}/trajectories", RolloutTrajectories)

    async def _trajectories(self, **wanted: str) -> AsyncIterator[TrajectorySummary]:
        cursor: str | None = None
        while True:
            params = wanted | {"limit": str(PAGE)} | ({"cursor": cursor} if cursor is not None else {})
            page = await self._get("/trajectories", TrajectoryPage, params)
            for one in page.items:
                yield one
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _get(self, path: str, kind: type[_Answer], params: dict[str, str] | None = None) -> _Answer:
        try:
            answer = await self._client.get(path, params=params)
            if not answer.is_success:
                raise GatewayError(f"--gateway: {answer.status_code} for {path}: {answer.text[:200]}")
            return kind.model_validate_json(answer.content)
        except httpx.HTTPError as error:
            raise GatewayError(f"--gateway: cannot be asked: {error!r}") from error
        except ValidationError as error:
            raise GatewayError(f"--gateway: does not answer like `heddle gateway` on {path}") from error


def _lengths(tokens: dict[tuple[str, str], float]) -> Lengths:
    names: list[str | int] = ["/".join(key) for key in tokens]
    return Lengths(names, list(tokens.values()), [0.0] * len(names))
