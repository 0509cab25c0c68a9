"""Keeps a good plan in force: asks the planner in time, activates what it answers, falls back when it is
away.

A round is asked for every period, when workers come, go or change, when the predictor's error jumps, when a
batch is announced, and by hand. A plan that expires without a successor leaves the placement that rehearsed
best without shares.

A new process goes on counting versions where the last one was, and takes up the plan that was in force, if
its time is not over, as soon as its workers are there.

Invariants: an operator who chose another placement is not overruled (only plans activated by hand are put
over it); what is planned and activated here is carried out by the decision core alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from heddle_contracts.history import PlanRecord
from heddle_contracts.planning import (
    Activated,
    ActivatedBy,
    EventKind,
    Plan,
    PlanCompute,
    PlanMaking,
    PlanReason,
)

from heddle_gateway.plans.book import PlanBook
from heddle_gateway.plans.fitting import DoesNotFit, FittedShare, fit
from heddle_gateway.plans.window import LiveCore, Named, Window
from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.planner_client import PlannerAway, PlannerClient, PlannerRefused

log = logging.getLogger(__name__)

DEFAULT_PLACEMENT: Final = "by_rank"
LEAST_TO_PLAN: Final = 2
"""Live trajectories below which there is nothing to divide."""
SETTLE_S: Final = 0.5
"""Workers come in crowds; a round waits this long for the others."""
LEAST_WAIT_S: Final = 0.01
LEAST_PAUSE_S: Final = 2.0
"""Between two rounds that nobody asked for by hand."""
TAKE_UP_WAIT_S: Final = 10.0
"""How long the plan of an earlier process waits for all its workers; then those there are have to do."""


class Core(LiveCore, Protocol):
    """The driven decision core (live.driver.Driver). ``check_policy`` and ``change_policy`` raise ValueError
    for what it does not take.
    """

    def check_policy(self, change: Mapping[str, Any]) -> None: ...
    def change_policy(self, change: Mapping[str, Any]) -> dict[str, Any]: ...
    def install_plan(self, serial: int, shares: Any, *, ttl_ms: int) -> None: ...


class NoPlanner(Exception):
    """No planner can be asked now; the message says why and what to do."""


class PlanKeeper:
    """``client`` is None without a planner. ``automatic``: plans that nobody asked for are made and
    activated. ``record`` hears of every plan when it is kept and when it is put in force.
    """

    def __init__(
        self,
        core: Core,
        *,
        client: PlannerClient | None,
        trajectory: Callable[[int], Named | None],
        worker_name: Callable[[int], str | None],
        period_s: float,
        automatic: bool,
        on_event: Callable[..., None],
        record: Callable[[PlanRecord], None],
    ) -> None:
        self._core = core
        self._client = client
        self._window = Window(core, trajectory, worker_name)
        self._period_s = period_s
        self._automatic = automatic
        self._on_event = on_event
        self._record = record
        self._earlier: Plan | None = None
        self._earlier_until = 0.0
        self._own_placement = DEFAULT_PLACEMENT
        self._serial = 0
        self._wanted: PlanReason | None = None
        self._wake = asyncio.Event()
        self._task = Background("plan-keeper", self._run)
        self._made = self._failed = self._activated = self._expired = 0
        self.book = PlanBook()

    @property
    def planner_state(self) -> str:
        """As /ready says it."""
        return self._client.state if self._client is not None else "absent"

    def stats(self) -> dict[str, float]:
        """For the metrics; what only grows ends in _total."""
        in_force = self.book.current(time.time())
        return {
            "kept": float(len(self.book)),
            "current_version": float((in_force.version or 0) if in_force is not None else 0),
            "made_total": float(self._made),
            "failed_total": float(self._failed),
            "activated_total": float(self._activated),
            "expired_total": float(self._expired),
        }

    # ---------------------------------------------------------------- asking

    async def compute(self, asked: PlanCompute, reason: PlanReason = PlanReason.REQUEST) -> Plan:
        """A plan of the planner, kept unless it is a dry run. Raises NoPlanner, PlannerRefused."""
        if self._client is None:
            raise NoPlanner("no planner is configured; start `heddle planner`, give its URL with --planner")
        try:
            plan = await self._client.plan(self._window.request(asked, reason))
        except PlannerAway as error:
            self._failed += 1
            raise NoPlanner(f"the planner cannot be asked now: {error}") from error
        except PlannerRefused:
            self._failed += 1
            raise
        if (why := self._refused(plan)) is not None:
            self._failed += 1
            self._client.distrust(why)
            raise NoPlanner(f"the planner answered with a plan that cannot be: {why}")
        self._made += 1
        # Times of the planner's host mean nothing here: its clock may be minutes off.
        now = time.time()
        times = {"made_at": now, "expires_at": now + (plan.expires_at - plan.made_at)}
        plan = plan.model_copy(update=times)
        if asked.dry_run:
            return plan
        kept = self.book.keep(plan, asked.lengths or ())
        self._record(PlanRecord(kept, asked.lengths or ()))
        return kept

    def want(self, reason: PlanReason) -> None:
        """A round soon."""
        self._wanted = reason
        self._wake.set()

    # ---------------------------------------------------------------- activating

    def activate(self, version: int, *, by: ActivatedBy = "operator") -> Activated:
        """Puts a plan of the book in force. Raises KeyError, DoesNotFit."""
        now = time.time()
        plan = self.book.get(version, now)
        if plan is None:
            raise KeyError(version)
        expires_at = plan.expires_at
        if by == "operator":  # also a roll back to one whose time is over
            expires_at = max(expires_at, now + plan.expires_at - plan.made_at)
        return self._put_in_force(plan, expires_at, now, by)

    def resume(self, last_version: int, in_force: PlanRecord | None) -> None:
        """What an earlier process left: the highest version it gave, and the plan it had in force. Of several
        such words the plan put in force last counts.
        """
        self.book.last_version = max(self.book.last_version, last_version)
        if in_force is None or time.time() >= in_force.plan.expires_at:
            return
        known = self._earlier or self.book.in_force
        if known is not None and (known.activated_at or 0.0) >= (in_force.plan.activated_at or 0.0):
            return
        self.book.admit(in_force.plan, in_force.lengths)
        self._earlier = in_force.plan
        self._earlier_until = time.monotonic() + TAKE_UP_WAIT_S
        self._wake.set()

    def workers_changed(self) -> None:
        self._take_up()
        self.want(PlanReason.WORKERS)

    def _take_up(self) -> None:
        """The plan of an earlier process, once its workers are there and while nothing newer is in force."""
        plan = self._earlier
        if plan is None:
            return
        by = plan.activated_by or "planner"
        over = self.book.in_force is not None or time.time() >= plan.expires_at
        unwanted = by == "planner" and not (self._automatic and self.may_place())
        if over or unwanted or self._refused(plan) is not None:
            self._earlier = None
            return
        names = self._window.names()
        there = {names.get(view["worker"]) for view in self._window.workers()}
        if time.monotonic() < self._earlier_until and not {share.name for share in plan.shares} <= there:
            return
        try:
            self._put_in_force(plan, plan.expires_at, plan.activated_at or plan.made_at, by)
        except DoesNotFit:
            return  # none of its workers is there yet
        log.info("plan %s of an earlier process is taken up", plan.version)
        self._earlier = None

    def _put_in_force(self, plan: Plan, expires_at: float, at: float, by: ActivatedBy) -> Activated:
        assert plan.version is not None, "a dry run cannot be put in force"
        version, now = plan.version, time.time()
        if (why := self._refused(plan)) is not None:
            raise DoesNotFit(why)
        shares = fit(plan, self._window.workers(), self._window.names())
        before = self._place(plan.placement)
        if plan.making is PlanMaking.SHARES:
            self._install([(share.worker, share.size) for share in shares], expires_at - now)
        else:
            self._withdraw_shares(shares)
        put = self.book.put_in_force(version, expires_at, at, by)
        self._record(PlanRecord(put, self.book.lengths(version)))
        self._activated += 1
        self._on_event(
            EventKind.PLAN_ACTIVATED,
            version=version,
            placement=plan.placement,
            making=plan.making,
            by_hand=by == "operator",
        )
        log.info("plan %d is in force: %s, %s", version, plan.making.value, plan.placement)
        self._wake.set()  # for the time at which it expires
        return Activated(
            plan=self.book.seen(put, now),
            placement_before=before,
            fleet=tuple(_told(share) for share in shares),
        )

    # ---------------------------------------------------------------- the task

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        last_round = time.monotonic() - self._period_s + LEAST_PAUSE_S
        while True:
            await self._wait(last_round)
            self._drop_expired()
            self._take_up()
            since = time.monotonic() - last_round
            reason = self._wanted or (PlanReason.PERIOD if since >= self._period_s else None)
            if reason is None or since < min(LEAST_PAUSE_S, self._period_s):
                continue
            self._wanted = None
            last_round = time.monotonic()
            if self._automatic and self._client is not None:
                if reason is PlanReason.WORKERS:
                    await asyncio.sleep(SETTLE_S)
                await self._round(reason)

    async def _wait(self, last_round: float) -> None:
        """Until something is wanted, the period is over, or the plan in force expires."""
        pause = min(LEAST_PAUSE_S, self._period_s) if self._wanted is not None else self._period_s
        wait = last_round + pause - time.monotonic()
        if (in_force := self.book.in_force) is not None:
            wait = min(wait, in_force.expires_at - time.time())
        if self._earlier is not None and (left := self._earlier_until - time.monotonic()) > 0:
            wait = min(wait, left)
        wait = max(LEAST_WAIT_S, wait)
        if self._wanted is not None:
            await asyncio.sleep(wait)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
        self._wake.clear()

    async def _round(self, reason: PlanReason) -> None:
        """Plans what is live, and activates the plan unless an operator placed otherwise."""
        assert self._client is not None
        if self._client.pause_s > 0 or not self.may_place() or len(self._core.active()) < LEAST_TO_PLAN:
            return
        try:
            plan = await self.compute(PlanCompute(), reason)
            if plan.version is not None and self.may_place():
                self.activate(plan.version, by="planner")
        except (NoPlanner, PlannerRefused, DoesNotFit) as error:
            log.warning("no new plan: %s", error)
            self._on_event(EventKind.PLAN_FAILED, reason=reason, why=str(error))

    def may_place(self) -> bool:
        """Whether the placement in force is the default or what a plan has put there."""
        return self._core.policy()["placement"] in (DEFAULT_PLACEMENT, self._own_placement)

    def _drop_expired(self) -> None:
        plan = self.book.in_force
        if plan is None or time.time() < plan.expires_at:
            return
        self.book.take_out_of_force()
        self._expired += 1
        if self.may_place():
            self._place(plan.fallback_placement)
        self._on_event(EventKind.PLAN_EXPIRED, version=plan.version, placement=plan.fallback_placement)
        log.warning("plan %s has expired; placement is %s", plan.version, plan.fallback_placement)

    # ---------------------------------------------------------------- inside

    def _refused(self, plan: Plan) -> str | None:
        """Why the core cannot take it: one of another release may want a placement that it does not know."""
        try:
            for placement in (plan.placement, plan.fallback_placement):
                self._core.check_policy({"placement": placement})
        except ValueError as error:
            return str(error)
        return None

    def _place(self, placement: str) -> str:
        """Puts a placement in force; returns the one before."""
        before = str(self._core.policy()["placement"])
        if before != placement:
            self._core.change_policy({"placement": placement})
        self._own_placement = placement
        return before

    def _install(self, shares: Sequence[tuple[int, int]], seconds: float) -> None:
        self._serial += 1
        self._core.install_plan(self._serial, shares, ttl_ms=max(1, round(1000 * seconds)))

    def _withdraw_shares(self, shares: Sequence[FittedShare]) -> None:
        """The core knows no plan without shares: one whose time is over at once takes the place of the
        last.
        """
        if self._serial:
            self._serial += 1
            self._core.install_plan(self._serial, [(share.worker, share.size) for share in shares], ttl_ms=0)


def _told(share: FittedShare) -> str:
    count = "1 trajectory" if share.size == 1 else f"{share.size} trajectories"
    return f"{share.name} (MP degree {share.degree}): {count}"
