"""The gateway's side of planning, wired: forecasts in, plans out, rollouts, their routes and counts.

Without a planner all of it is there: routes answer that there is none, and the core goes by its own
estimates.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import PlanReason
from heddle_contracts.predictions import ANNOUNCED_TENANT, MAX_BATCH, NewTrajectory, StepBatch, TrajectoryOver
from heddle_contracts.rollouts import RolloutMember

from heddle_gateway.live.directory import LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.plans.keeper import PlanKeeper
from heddle_gateway.plans.rollouts import RolloutBook
from heddle_gateway.routes.admin_events import events_router
from heddle_gateway.routes.admin_plans import LivePlaces, PlanDeps, plans_router
from heddle_gateway.routes.admin_rollouts import Estimate, RolloutDeps, rollouts_router
from heddle_gateway.settings import Settings
from heddle_gateway.store.engine import StoreError
from heddle_gateway.store.plan_history import PlanHistory
from heddle_gateway.telemetry.planner_client import PlannerAway, PlannerClient
from heddle_gateway.telemetry.planner_feed import PlannerFeed, forecasts_of

log = logging.getLogger(__name__)

TAKE_UP_TIMEOUT_S: Final = 10.0
NO_PLANNER_STATS = dict.fromkeys(PlannerFeed.COUNTS, 0.0)


class Planning:
    """``driver`` may be set after the object is made: the two know each other."""

    def __init__(self, settings: Settings, worker_name: Callable[[int], str | None]) -> None:
        self._settings = settings
        self._worker_name = worker_name
        self.rollouts = RolloutBook()
        self.rollouts_saved: Callable[[], Awaitable[bool]] = _nowhere
        """Returns when what was announced outlives this process, or cannot for now."""
        self.client: PlannerClient | None = None
        self.feed: PlannerFeed | None = None

    def open(self, driver: Driver, record: Callable[[PlanRecord], None], past: PlanHistory) -> None:
        """``record`` takes what history keeps of plans, ``past`` reads it. Raises ValueError for a planner's
        URL that is none.
        """
        settings = self._settings
        if settings.planner is not None:
            key = settings.planner_key
            self.client = PlannerClient(
                settings.planner,
                key=key.get_secret_value() if key is not None else None,
                timeout_s=settings.planner_timeout_s,
                plan_timeout_s=settings.plan_timeout_s,
            )
            self.feed = PlannerFeed(self.client, self._apply, lambda why: self.keeper.want(PlanReason.ERROR))
        self._driver, self._past = driver, past
        self.keeper = PlanKeeper(
            driver,
            client=self.client,
            trajectory=driver.directory.by_handle,
            worker_name=self._worker_name,
            period_s=settings.plan_period_s,
            automatic=settings.auto_plan,
            on_event=driver.feed.publish,
            record=record,
        )

    # ---------------------------------------------------------------- what happens

    def step_ended(self, step: Any) -> None:
        """A sink of ended steps."""
        self.rollouts.step_ended(step)
        if self.feed is not None:
            self.feed.step_ended(step)

    def first_step(self, live: LiveTrajectory, prompt_tokens: int) -> None:
        if self.feed is not None:
            self.feed.first_step(_new(live, prompt_tokens))

    def trajectory_over(self, live: LiveTrajectory, *, finished: bool, at: float) -> None:
        self.rollouts.trajectory_over(live.trajectory_id)
        if self.feed is not None:
            self.feed.trajectory_over(
                TrajectoryOver(tenant=live.tenant, trajectory_id=live.trajectory_id, finished=finished, at=at)
            )

    def workers_changed(self) -> None:
        self.keeper.workers_changed()

    # ---------------------------------------------------------------- looking in

    def stats(self) -> Mapping[str, float]:
        """Of the planner's feed, for the metrics."""
        return self.feed.stats() if self.feed is not None else NO_PLANNER_STATS

    def routers(self, places: LivePlaces) -> Sequence[APIRouter]:
        driver, keeper, name = self._driver, self.keeper, self._worker_name
        return (
            plans_router(PlanDeps(keeper, places, self._past)),
            rollouts_router(
                RolloutDeps(
                    book=self.rollouts,
                    driver=driver,
                    keeper=keeper,
                    worker_name=name,
                    forecast=self._forecast,
                    max_trajectories=self._settings.max_trajectories,
                    saved=lambda: self.rollouts_saved(),
                )
            ),
            events_router(driver.feed, name),
        )

    # ---------------------------------------------------------------- lifetime

    async def take_up(self) -> None:
        """What an earlier process left in history. Without the database versions begin anew."""
        try:
            async with asyncio.timeout(TAKE_UP_TIMEOUT_S):
                self.keeper.resume(*await self._past.last())
        except (StoreError, TimeoutError) as error:
            log.warning("plans of an earlier run are not taken up: %s", error or "the database is slow")

    def start(self) -> None:
        if self.feed is not None:
            self.feed.start()
        self.keeper.start()

    async def close(self) -> None:
        self._driver.feed.close()
        await self.keeper.close()
        if self.feed is not None:
            await self.feed.close()
        if self.client is not None:
            await self.client.close()

    # ---------------------------------------------------------------- inside

    def _apply(self, tenant: str, trajectory_id: str, mean: float, sigma: float, gap_s: float | None) -> bool:
        live = self._driver.directory.find(trajectory_id, tenant)
        if live is None:
            return False
        self._driver.predicted(live, mean=mean, sigma=sigma, gap_s=gap_s)
        return True

    async def _forecast(
        self, members: Sequence[RolloutMember], tokens: Sequence[int], model: str | None
    ) -> list[Estimate]:
        """The planner's word, and the core's prior for those of which it says nothing."""
        policy = self._driver.policy()
        said: dict[str, Estimate] = {}
        if self.client is not None:
            news = [
                NewTrajectory(
                    tenant=ANNOUNCED_TENANT,
                    trajectory_id=member.trajectory_id,
                    group_id=member.group_id,
                    sample=member.sample,
                    model=model,
                    prompt_tokens=count,
                )
                for member, count in zip(members, tokens, strict=True)
            ]
            try:
                for start in range(0, len(news), MAX_BATCH):
                    batch = StepBatch(new=tuple(news[start : start + MAX_BATCH]))
                    answer = await self.client.steps(batch.model_dump_json().encode())
                    said |= {one.trajectory_id: (one.mean, one.sigma) for one in forecasts_of(answer)[0]}
            except PlannerAway:
                pass
        prior = (float(policy["prior_mean_tokens"]), float(policy["prior_sigma"]))
        return [said.get(member.trajectory_id, prior) for member in members]


async def _nowhere() -> bool:
    """Without a Redis rollouts end with the process."""
    return False


def _new(live: LiveTrajectory, prompt_tokens: int) -> NewTrajectory:
    return NewTrajectory(
        tenant=live.tenant,
        trajectory_id=live.trajectory_id,
        group_id=live.group_id,
        sample=live.sample,
        model=live.model,
        prompt_tokens=prompt_tokens,
    )
