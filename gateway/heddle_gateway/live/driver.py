"""Drives the decision core live: events in, actions carried out.

Invariants: every call into the core is followed by carrying out all its actions; there are no locks (one
event loop) and no counts here (they are asked of the core); each ticket is ended exactly once, by ``end``.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from heddle_contracts.planning import EventKind
from heddle_core import CancelMigration, Core, Dispatch, Expire, Migrate, Reject, Scan, Withdraw

from heddle_gateway.live.core_timer import MIN_TIMER_S, CoreTimer
from heddle_gateway.live.decision_feed import DecisionFeed
from heddle_gateway.live.decisions import FailureKind
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.moves_wanted import MoveRefused, MovesKv
from heddle_gateway.live.onlookers import show
from heddle_gateway.live.policy import PolicyRefused, laid_over, new_core
from heddle_gateway.live.ticket import Ticket
from heddle_gateway.live.workers import CoreWorkers

if TYPE_CHECKING:
    from heddle_core import Action, MigrationFailure, Outcome


def monotonic_micros() -> int:
    return time.monotonic_ns() // 1000


class Driver:
    """One per process. ``workers`` takes what the fleet tells.

    ``max_trajectories`` bounds memory: beyond it the trajectory seen longest ago is finished.
    ``on_expire`` hears of each trajectory that is forgotten, and why: "idle" or "finished"; ``on_first_step``
    of each that has come, with its estimated prompt tokens. ``feed`` tells onlookers what is decided.
    """

    def __init__(
        self,
        core: Core,
        directory: Directory,
        *,
        max_trajectories: int,
        on_expire: Callable[[LiveTrajectory, str], None],
        clock: Callable[[], int] = monotonic_micros,
        least_timer_s: float = MIN_TIMER_S,
        on_first_step: Callable[[LiveTrajectory, int], None] = lambda live, prompt_tokens: None,
    ) -> None:
        self._core = core
        self._clock = clock
        self._max_trajectories = max_trajectories
        self._on_expire = on_expire
        self._on_first_step = on_first_step
        self.feed = DecisionFeed()
        self._tickets: dict[int, Ticket] = {}
        self.workers = CoreWorkers(self._tell)
        self.mover: MovesKv | None = None
        self.on_orders: Callable[[], None] = lambda: None
        """Hears when an operator has changed the policy, or paused dispatch."""
        self._steps = count(1)
        self._timer = CoreTimer(lambda: self._tell(Core.handle_timeout), clock=clock, least_s=least_timer_s)
        self.directory = directory

    # ---------------------------------------------------------------- steps

    def new_ticket(self, on_withdraw: Callable[[], None]) -> Ticket:
        """Of a step that another process decides about, for now; no other step here has its number."""
        return Ticket(next(self._steps), 0, on_withdraw)

    def arrive(
        self,
        trajectory: LiveTrajectory,
        *,
        prompt_tokens: int,
        scan: Scan,
        on_withdraw: Callable[[], None],
        ticket: Ticket | None = None,
        bound_to: int | None = None,
    ) -> Ticket:
        """A step of this trajectory asks to run. ``ticket``: one that it has already. ``bound_to``: on this
        worker and no other.
        """
        pinned = bound_to if trajectory.returns_to is None else self._home_again(trajectory, bound_to)
        if ticket is None:
            ticket = Ticket(next(self._steps), trajectory.handle, on_withdraw)
        else:
            ticket.handle = trajectory.handle
        self._tickets[ticket.step] = ticket
        self._carry_out(
            self._core.step_arrived(
                self._clock(),
                ticket.step,
                trajectory.handle,
                group=trajectory.group,
                prompt_tokens=prompt_tokens,
                body=scan,
                pinned_worker=pinned,
                bound=bound_to is not None,
            )
        )
        if len(self.directory) > self._max_trajectories:
            self._retire_the_oldest()
        if not trajectory.has_arrived:
            trajectory.has_arrived = True
            self._on_first_step(trajectory, prompt_tokens)
        return ticket

    def adopt(
        self,
        trajectory: LiveTrajectory,
        ticket: Ticket,
        *,
        prompt_tokens: int,
        worker: int,
        generation: int,
        level: int,
        running_s: float,
        streaming: bool,
    ) -> None:
        """A step that another process sent to this worker, so many seconds ago, is decided about here from
        now on. Nothing is sent.
        """
        ticket.handle = trajectory.handle
        self._tickets[ticket.step] = ticket
        trajectory.returns_to = None
        self._carry_out(
            self._core.step_adopted(
                self._clock(),
                ticket.step,
                trajectory.handle,
                group=trajectory.group,
                prompt_tokens=prompt_tokens,
                worker=worker,
                generation=generation,
                level=level,
                running_us=max(0, round(1e6 * running_s)),
                streaming=streaming,
            )
        )
        if not trajectory.has_arrived:
            trajectory.has_arrived = True
            self._on_first_step(trajectory, prompt_tokens)

    def begin_anew(self) -> None:
        """Another process decides from now on: all steps and trajectories are forgotten, and nobody hears of
        their end. Workers, policy and a pause stay. A journal ends here: it replays one life of the core.
        """
        is_paused = self.is_paused
        self._core = new_core(self.policy(), journal=False)
        self._tickets.clear()
        self.directory.clear()
        self.close()
        self.workers.tell_again()
        self._carry_out(self._core.dispatch_paused(self._clock(), is_paused))

    def _home_again(self, trajectory: LiveTrajectory, bound_to: int | None) -> int | None:
        """The worker that an earlier process left its KV on, for the first step here alone."""
        home, trajectory.returns_to = trajectory.returns_to, None
        if bound_to is not None or home is None:
            return bound_to
        return self.workers.id_of(home)

    def first_byte(self, ticket: Ticket) -> None:
        self._carry_out(self._core.first_byte(self._clock(), ticket.step))

    def aborting(self, ticket: Ticket) -> None:
        """The client left. Later steps of the trajectory wait until ``end``."""
        self._carry_out(self._core.step_aborting(self._clock(), ticket.step))

    def attempt_failed(self, ticket: Ticket, dispatch: Dispatch, kind: FailureKind) -> None:
        """Nothing of an answer reached the client: the ticket gets another decision."""
        ticket.decision = None
        self._carry_out(
            self._core.attempt_failed(self._clock(), ticket.step, dispatch.worker, dispatch.generation, kind)
        )

    def end(
        self,
        ticket: Ticket,
        outcome: "Outcome",
        *,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
    ) -> None:
        """The step is over. Raises KeyError the second time."""
        del self._tickets[ticket.step]
        self._carry_out(
            self._core.step_ended(
                self._clock(),
                ticket.step,
                outcome,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                cached_tokens=cached_tokens,
            )
        )

    def finish(self, trajectory: LiveTrajectory) -> None:
        """The trajectory has ended; it is forgotten once its live steps are over."""
        if self.trajectory_view(trajectory) is None:
            # Announced, not expected, and it has not come: the core has nothing to forget.
            self._forget(trajectory.handle, "finished")
            return
        self._carry_out(self._core.trajectory_finished(self._clock(), trajectory.handle))

    # ---------------------------------------------------------------- knowledge

    def predicted(
        self, trajectory: LiveTrajectory, *, mean: float, sigma: float, gap_s: float | None = None
    ) -> None:
        """A predictor's word: output tokens still to come, the spread of their logarithm, and how long the
        tool takes. What is held is ranked anew. Raises ValueError for numbers that cannot be.
        """
        gap_us = None if gap_s is None else round(1e6 * gap_s)
        self._carry_out(self._core.predicted(self._clock(), trajectory.handle, mean, sigma, gap_us=gap_us))
        self.feed.publish(
            EventKind.PREDICTED, trajectory_id=trajectory.trajectory_id, mean=mean, sigma=sigma, gap_s=gap_s
        )

    def expect(self, trajectory: LiveTrajectory, *, mean: float, sigma: float) -> None:
        """A trajectory that was announced: it is ranked from now on. Raises ValueError for numbers that
        cannot be.
        """
        self._carry_out(
            self._core.trajectory_expected(
                self._clock(), trajectory.handle, group=trajectory.group, mean=mean, sigma=sigma
            )
        )

    def install_plan(self, serial: int, shares: Iterable[tuple[int, int]], *, ttl_ms: int) -> None:
        """Shares of the ranks, (worker, trajectories) each, the longest first. ``serial`` grows with every
        call. Raises ValueError for shares that cannot be.
        """
        partition = [{"worker": worker, "size": size} for worker, size in shares]
        spec = {"version": serial, "partition": partition, "ttl_ms": ttl_ms}
        self._carry_out(self._core.install_plan(self._clock(), json.dumps(spec)))
        self.feed.publish(EventKind.PLAN_INSTALLED, serial=serial, shares=partition, ttl_ms=ttl_ms)

    def active(self) -> list[tuple[int, int, float | None, int, int, int | None]]:
        """Of each active trajectory: (handle, remaining tokens, sigma of its prediction, context tokens,
        tokens generated, home worker).
        """
        return self._core.active_views()

    # ---------------------------------------------------------------- moving KV

    def ask_migration(
        self, trajectory: LiveTrajectory, to_worker: int, within_s: float | None = None
    ) -> None:
        """A person wants it; it begins in the trajectory's tool gap. ``within_s``: what the transfer may
        take; None is sized by what it moves. Raises MoveRefused.
        """
        within_us = None if within_s is None else max(1, round(1e6 * within_s))
        try:
            actions = self._core.migration_asked(
                self._clock(), trajectory.handle, to_worker, within_us=within_us
            )
        except ValueError as error:
            raise MoveRefused(str(error)) from error
        self._carry_out(actions)

    def migration_landed(self, migration: int, tokens: int) -> None:
        self._carry_out(self._core.migration_landed(self._clock(), migration, tokens))

    def migration_failed(self, migration: int, why: "MigrationFailure") -> None:
        self._carry_out(self._core.migration_failed(self._clock(), migration, why))

    def move_views(self) -> list[dict[str, Any]]:
        """Moves that have not ended, oldest first, as the core has them."""
        return self._core.move_views()

    # ---------------------------------------------------------------- pausing

    def pause_dispatch(self, paused: bool) -> bool:
        """The engines are paused, or go on: steps wait, and none is sent in between. False when it was so
        before.
        """
        if paused == self.is_paused:
            return False
        self._carry_out(self._core.dispatch_paused(self._clock(), paused))
        self.on_orders()
        return True

    @property
    def is_paused(self) -> bool:
        return self._core.stats()["dispatch_paused"] > 0

    # ---------------------------------------------------------------- policy and views

    def policy(self) -> dict[str, Any]:
        """The policy in force, as the core writes it."""
        policy: dict[str, Any] = json.loads(self._core.policy_json())
        return policy

    def change_policy(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Puts the given fields over the policy in force; returns what is in force then. Raises
        PolicyRefused.
        """
        try:
            actions = self._core.set_policy(self._clock(), json.dumps(laid_over(self.policy(), change)))
        except ValueError as error:
            raise PolicyRefused(str(error)) from error
        self._carry_out(actions)
        self.on_orders()
        return self.policy()

    def check_policy(self, change: Mapping[str, Any]) -> None:
        """Raises PolicyRefused where ``change_policy`` would; changes nothing."""
        new_core(laid_over(self.policy(), change), journal=False)

    def stats(self) -> dict[str, int]:
        """The core's counts, derived from the live steps when asked."""
        return self._core.stats()

    def trajectory_view(self, trajectory: LiveTrajectory) -> dict[str, Any] | None:
        return self._core.trajectory_view(trajectory.handle)

    def worker_views(self) -> list[dict[str, Any]]:
        return self._core.worker_views()

    def audit(self) -> list[str]:
        """Broken invariants of the core; empty when all hold."""
        return self._core.audit()

    def take_journal(self) -> bytes:
        return self._core.take_journal()

    def live_steps_on(self, worker_id: int) -> int:
        """Steps that the core counts on this worker now."""
        return sum(
            view["running"] + view["preempted"]
            for view in self._core.worker_views()
            if view["worker"] == worker_id
        )

    @property
    def live_steps(self) -> int:
        return len(self._tickets)

    def close(self) -> None:
        """Stops the timer; held steps stay held, so end their tasks first."""
        self._timer.close()

    # ---------------------------------------------------------------- inside

    def _tell(self, call: "Callable[[Core, int], Iterable[Action]]") -> None:
        self._carry_out(call(self._core, self._clock()))

    def _carry_out(self, actions: "Iterable[Action]") -> None:
        for action in actions:
            if self.feed.watched:
                show(self.feed, action, self._trajectory_of(action))
            match action:
                case Dispatch() | Reject():
                    ticket = self._tickets.get(action.step)
                    if ticket is not None:
                        ticket.decide(action)
                case Withdraw():
                    ticket = self._tickets.get(action.step)
                    if ticket is not None:
                        ticket.withdraw()
                case Migrate():
                    live = self.directory.by_handle(action.trajectory)
                    if live is not None and self.mover is not None:
                        self.mover.begin(action, live)
                case CancelMigration():
                    if self.mover is not None:
                        self.mover.cancel(action)
                case Expire():
                    self._forget(action.trajectory, action.reason)
        self._timer.follow(self._core.poll_timeout())

    def _forget(self, handle: int, reason: str) -> None:
        live = self.directory.forget(handle)
        if live is not None:
            self._on_expire(live, reason)

    def _trajectory_of(self, action: "Action") -> LiveTrajectory | None:
        handle = getattr(action, "trajectory", None)
        if handle is None and (ticket := self._tickets.get(getattr(action, "step", 0))) is not None:
            handle = ticket.handle
        return self.directory.by_handle(handle) if handle is not None else None

    def _retire_the_oldest(self) -> None:
        oldest = self.directory.oldest()
        if oldest is None:
            return
        self.finish(oldest)
        if self.directory.by_handle(oldest.handle) is not None:
            # It has live steps and goes with the last of them; the next one asked shall be another.
            self.directory.put_last(oldest)
