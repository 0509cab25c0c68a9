"""A rollout's members and how far each is, by what the core and the step records say now.

With most agents nobody says when they are done. A member whose last answer called no tool is over once it has
stayed away for `ANSWERED_S`, in a rollout whose members do not go on after such answers: where one does, its
tools cannot be seen (commands in the text, a user that is played), and only a long silence tells.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from heddle_contracts.live_state import MemberProgress
from heddle_contracts.rollouts import Rollout, RolloutCreate, RolloutMember, Straggler

STRAGGLERS: Final = 5
ANSWERED_S: Final = 10.0
"""Agents that go on after an answer without tool calls do so at once (a title, a command in the text), or
after a turn of whoever plays the user; 86 % of tool gaps are under 1 s.
"""

State = Literal["waiting", "running", "over"]
End = Literal["said", "answered", "quiet"]
"""What tells that a member is over: its own end or `/finish`, its last answer, or that it stays away."""

Row = tuple[int, int, float | None, int, int, int | None]
"""Of an active trajectory: handle, remaining, sigma, context, generated, home."""


class Live(Protocol):
    """A live trajectory (live.directory.LiveTrajectory)."""

    @property
    def handle(self) -> int: ...
    @property
    def has_arrived(self) -> bool: ...


@dataclass(slots=True)
class Member:
    """``live``: its entry in the directory; None where it was over before this process knew of it."""

    who: RolloutMember
    sigma: float
    live: Any
    rollout: str
    number: int
    steps: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    over: bool = False
    answered: bool = False
    """Its last step is an answer that called no tool."""
    went_on: bool = False
    """A step has come after such an answer."""

    @property
    def progress(self) -> MemberProgress:
        return MemberProgress(
            steps=self.steps,
            output_tokens=self.output_tokens,
            first_at=self.first_at,
            last_at=self.last_at,
            over=self.over,
            answered=self.answered,
            went_on=self.went_on,
        )


@dataclass(slots=True)
class Batch:
    id: str
    asked: RolloutCreate
    created_at: float
    members: list[Member] = field(default_factory=list)
    plan_version: int | None = None

    @property
    def answers_are_ends(self) -> bool:
        """No member has gone on after an answer without tool calls."""
        return not any(one.went_on for one in self.members)


@dataclass(frozen=True, slots=True)
class Known:
    """What the core knows, asked once: rows of active trajectories by handle, names of workers, its view of
    one. ``quiet_s``: a member whose last step ended so long ago is taken for over; no less than the gap after
    which the core does not rank it any more, which it learns of usual gaps and long ones go beyond.
    """

    rows: Mapping[int, Row]
    worker_name: Callable[[int], str | None]
    view: Callable[[Any], Mapping[str, Any] | None]
    quiet_s: float


def rollout_of(batch: Batch, known: Known) -> Rollout:
    """How far it is, and who will end last."""
    stands = stands_of(batch, known)
    waiting = [one for one, (state, _) in zip(batch.members, stands, strict=True) if state == "waiting"]
    running = [one for one, (state, _) in zip(batch.members, stands, strict=True) if state == "running"]
    finished = len(batch.members) - len(waiting) - len(running)
    ends = [end for _, end in stands]
    begun = [one.first_at for one in batch.members if one.first_at is not None]
    last = [one.last_at for one in batch.members if one.last_at is not None]
    started_at = min(begun, default=None)
    over = not running and not waiting
    ended_at = max(last, default=None) if over else None
    now = time.time()
    remaining = {one.who.trajectory_id: remaining_of(one, known) for one in (*running, *waiting)}
    slowest = sorted(running, key=lambda one: -remaining[one.who.trajectory_id])
    return Rollout(
        id=batch.id,
        name=batch.asked.name,
        policy_version=batch.asked.policy_version,
        model=batch.asked.model,
        state="finished" if over else "announced" if started_at is None and not running else "running",
        created_at=batch.created_at,
        started_at=started_at,
        ended_at=ended_at,
        trajectories=len(batch.members),
        waiting=len(waiting),
        running=len(running),
        finished=finished,
        answered=ends.count("answered"),
        quiet=ends.count("quiet"),
        steps=sum(one.steps for one in batch.members),
        output_tokens=sum(one.output_tokens for one in batch.members),
        predicted_remaining=sum(remaining.values()),
        makespan_so_far_s=None if started_at is None else (ended_at or now) - started_at,
        expected_end_at=ended_at if over else _expected_end(batch.members, remaining, now),
        stragglers=tuple(
            Straggler(
                trajectory_id=one.who.trajectory_id,
                predicted_remaining=remaining[one.who.trajectory_id],
                steps=one.steps,
                worker=_home(one, known),
                phase=_phase(one, known),
            )
            for one in slowest[:STRAGGLERS]
        ),
        plan_version=batch.plan_version,
    )


def is_over(batch: Batch, known: Known) -> bool:
    return all(state == "over" for state, _ in stands_of(batch, known))


def stands_of(batch: Batch, known: Known) -> list[tuple[State, End | None]]:
    """Of each member, how far it is; and what tells so where it is over, or will tell so if no step comes."""
    answers_are_ends = batch.answers_are_ends
    return [_stand(member, known, answers_are_ends) for member in batch.members]


def _stand(member: Member, known: Known, answers_are_ends: bool) -> tuple[State, End | None]:
    if member.over:
        return "over", "said"
    if not member.live.has_arrived and not member.steps:
        return "waiting", None
    away_s = None if member.last_at is None else time.time() - member.last_at
    if member.answered and answers_are_ends and away_s is not None and not _has_live_step(member, known):
        return ("over" if away_s >= min(ANSWERED_S, known.quiet_s) else "running"), "answered"
    if member.live.handle in known.rows:
        return "running", None
    # In a longer tool gap than is usual, or over.
    if away_s is None or away_s >= known.quiet_s:
        return "over", "quiet"
    return "running", None


def _has_live_step(member: Member, known: Known) -> bool:
    view = known.view(member.live)
    return view is not None and bool(view["live_steps"])


def remaining_of(member: Member, known: Known) -> float:
    """Output tokens still expected."""
    row = known.rows.get(member.live.handle) if member.live is not None else None
    if row is not None:
        return float(row[1])
    view = known.view(member.live) if member.steps else None
    return float(view["remaining"] if view is not None else member.who.predicted or 0.0)


def _home(member: Member, known: Known) -> str | None:
    row = known.rows.get(member.live.handle)
    return known.worker_name(row[5]) if row is not None and row[5] is not None else None


def _phase(member: Member, known: Known) -> str:
    view = known.view(member.live)
    return str(view["phase"]) if view is not None else "finished"


def _expected_end(members: Sequence[Member], remaining: Mapping[str, float], now: float) -> float | None:
    """When the slowest is expected to end, if each goes on at its own pace so far, tools and queues included;
    those that have no pace yet go at the mean one. None before the first step has ended.
    """
    seconds = {
        one.who.trajectory_id: one.last_at - one.first_at
        for one in members
        if one.first_at is not None and one.last_at is not None and one.output_tokens
    }
    tokens = sum(one.output_tokens for one in members if one.who.trajectory_id in seconds)
    if not tokens:
        return None
    usual = sum(seconds.values()) / tokens
    left = [
        remaining[one.who.trajectory_id]
        * (seconds[one.who.trajectory_id] / one.output_tokens if one.who.trajectory_id in seconds else usual)
        for one in members
        if one.who.trajectory_id in remaining
    ]
    return now + max(left, default=0.0)
