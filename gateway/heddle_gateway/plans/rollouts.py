"""Batches that were announced: who belongs to them and how far they are.

Invariants: a member counts as waiting, running or finished by what the core and its step records say now;
nothing is counted beside that. The number of rollouts and of their members is bounded, finished ones go
first. What has changed is told once to who keeps a copy (`take_changes`).
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from heddle_contracts.live_state import MemberProgress, MemberState, RolloutState
from heddle_contracts.rollouts import (
    MAX_TRAJECTORIES,
    Rollout,
    RolloutCreate,
    RolloutCreated,
    RolloutMember,
    RolloutTrajectories,
    RolloutTrajectory,
    Straggler,
)

MOST_ROLLOUTS: Final = 64
STRAGGLERS: Final = 5
GIVEN_SIGMA: Final = 0.5
"""Spread of the logarithm around a length that the caller gives: samples of one prompt differ by about
that.
"""

Row = tuple[int, int, float | None, int, int, int | None]
"""Of an active trajectory: handle, remaining, sigma, context, generated, home."""


class RolloutRefused(Exception):
    """A batch that cannot be taken; ``field`` is at fault."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class Live(Protocol):
    """A live trajectory (live.directory.LiveTrajectory)."""

    @property
    def handle(self) -> int: ...
    @property
    def has_arrived(self) -> bool: ...


class EndedStep(Protocol):
    """What is read of an ended step."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def arrived_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...


@dataclass(slots=True)
class _Member:
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

    @property
    def progress(self) -> MemberProgress:
        return MemberProgress(
            steps=self.steps,
            output_tokens=self.output_tokens,
            first_at=self.first_at,
            last_at=self.last_at,
            over=self.over,
        )


@dataclass(slots=True)
class _Batch:
    id: str
    asked: RolloutCreate
    created_at: float
    members: list[_Member] = field(default_factory=list)
    plan_version: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the core knows of all active trajectories, asked once: rows by handle, names of workers."""

    rows: Mapping[int, Row]
    worker_name: Callable[[int], str | None]
    phase: Callable[[Any], str]


class RolloutBook:
    """``announce`` makes a live entry of a member: (member, model, rollout id, mean, sigma)."""

    def __init__(self) -> None:
        self._batches: OrderedDict[str, _Batch] = OrderedDict()
        self._members: dict[str, _Member] = {}
        # Numbers of the members that went on; None where all of a rollout is new.
        self._changed: dict[str, set[int] | None] = {}
        self._gone: set[str] = set()
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._batches

    def draft(self, asked: RolloutCreate, *, room: int) -> tuple[str, list[RolloutMember], list[int]]:
        """Ids for a batch: (rollout id, members, prompt tokens of each). Nothing is kept yet. Raises
        RolloutRefused.
        """
        given = [name for name in ("prompts", "lengths") if getattr(asked, name) is not None]
        if len(given) != 1:
            raise RolloutRefused("prompts", "prompts: give either prompts or lengths, and not both")
        count = len(asked.prompts or asked.lengths or ()) * asked.group_size
        most = min(MAX_TRAJECTORIES, room)
        if count > most:
            raise RolloutRefused(given[0], f"{given[0]}: {count} trajectories, there is room for {most}")
        names = [prompt.id for prompt in asked.prompts or () if prompt.id is not None]
        if len(set(names)) < len(names):
            raise RolloutRefused("prompts", "prompts: two of them have the same id")
        rollout = f"ro-{secrets.token_hex(8)}"
        members, tokens = [], []
        for index in range(count // asked.group_size):
            prompt = asked.prompts[index] if asked.prompts is not None else None
            length = prompt.length if prompt is not None else asked.lengths[index] if asked.lengths else None
            for sample in range(asked.group_size):
                members.append(
                    RolloutMember(
                        trajectory_id=f"{rollout}-{index}-{sample}",
                        group_id=(prompt.id if prompt is not None and prompt.id else f"{rollout}-{index}"),
                        sample=sample,
                        prompt=index,
                        predicted=length,
                    )
                )
                tokens.append(prompt.tokens if prompt is not None else 0)
        return rollout, members, tokens

    def keep(
        self, rollout: str, asked: RolloutCreate, members: Sequence[tuple[RolloutMember, float, Live]]
    ) -> None:
        """Keeps a batch whose members are live entries now; with each the spread of its length."""
        batch = _Batch(rollout, asked, time.time())
        batch.members = [
            _Member(who, sigma, live, rollout, number) for number, (who, sigma, live) in enumerate(members)
        ]
        self._file(batch)
        self._changed[rollout] = None
        self.on_change()

    def planned(self, rollout: str, version: int | None) -> None:
        self._batches[rollout].plan_version = version
        self._changed[rollout] = None
        self.on_change()

    def step_ended(self, step: EndedStep) -> None:
        """A sink of ended steps."""
        member = self._members.get(step.trajectory_id)
        if member is None:
            return
        member.steps += 1
        member.output_tokens += step.output_tokens
        if member.first_at is None:
            member.first_at = step.arrived_at
        member.last_at = step.ended_at
        self._note(member)

    def trajectory_over(self, trajectory_id: str) -> None:
        member = self._members.get(trajectory_id)
        if member is not None and not member.over:
            member.over = True
            self._note(member)

    # ---------------------------------------------------------------- a copy elsewhere

    def all_changed(self, gone: Iterable[str] = ()) -> None:
        """Who keeps a copy may have none, and may not have heard of those that are gone."""
        self._changed = dict.fromkeys(self._batches)
        self._gone.update(gone)

    @property
    def changes(self) -> int:
        """Rollouts that `take_changes` would tell of."""
        return len(self._changed) + len(self._gone)

    def take_changes(self) -> tuple[dict[str, set[int] | None], set[str]]:
        """Since the last call: of each rollout that changed the numbers of its members, None for all of it;
        and rollouts that are not kept any more.
        """
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, set()
        return changed, gone

    def state_of(self, rollout: str) -> RolloutState:
        """All that is known of one that is kept."""
        batch = self._batches[rollout]
        return RolloutState(
            id=batch.id,
            name=batch.asked.name,
            policy_version=batch.asked.policy_version,
            model=batch.asked.model,
            created_at=batch.created_at,
            plan_version=batch.plan_version,
            members=tuple(MemberState(who=one.who, sigma=one.sigma) for one in batch.members),
            progress=tuple(one.progress for one in batch.members),
        )

    def progress_of(self, rollout: str, numbers: Iterable[int]) -> dict[int, MemberProgress]:
        """Of these members of a rollout that is kept."""
        members = self._batches[rollout].members
        return {number: members[number].progress for number in numbers}

    def restore(self, state: RolloutState, lives: Sequence[Live | None]) -> None:
        """A rollout of another process goes on here. ``lives``: the entry of each member that is not over."""
        asked = RolloutCreate(name=state.name, policy_version=state.policy_version, model=state.model)
        batch = _Batch(state.id, asked, state.created_at, plan_version=state.plan_version)
        for number, (member, progress, live) in enumerate(
            zip(state.members, state.progress, lives, strict=True)
        ):
            batch.members.append(
                _Member(
                    member.who,
                    member.sigma,
                    live,
                    state.id,
                    number,
                    steps=progress.steps,
                    output_tokens=progress.output_tokens,
                    first_at=progress.first_at,
                    last_at=progress.last_at,
                    over=progress.over or live is None,
                )
            )
        self._file(batch)

    def begin_anew(self) -> None:
        """Another process has them from now on."""
        self._batches.clear()
        self._members.clear()
        self.take_changes()

    # ---------------------------------------------------------------- looking in

    def unfinished(self, rollout: str) -> list[Any] | None:
        """Live entries of a rollout's members that are not over; None if there is no such rollout."""
        batch = self._batches.get(rollout)
        return None if batch is None else [one.live for one in batch.members if not one.over]

    def created(self, rollout: str, known: Known) -> RolloutCreated:
        batch = self._batches[rollout]
        return RolloutCreated(
            rollout=self._view(batch, known), trajectories=tuple(member.who for member in batch.members)
        )

    def view(self, rollout: str, known: Known) -> Rollout | None:
        batch = self._batches.get(rollout)
        return None if batch is None else self._view(batch, known)

    def trajectories(self, rollout: str, known: Known) -> RolloutTrajectories | None:
        batch = self._batches.get(rollout)
        if batch is None:
            return None
        items = []
        for member in batch.members:
            state = self._state(member, known)
            items.append(
                RolloutTrajectory(
                    trajectory_id=member.who.trajectory_id,
                    group_id=member.who.group_id,
                    sample=member.who.sample,
                    state=state,
                    steps=member.steps,
                    output_tokens=member.output_tokens,
                    predicted_remaining=0.0 if state == "over" else self._remaining(member, known),
                )
            )
        return RolloutTrajectories(items=tuple(items))

    def newest_first(self, known: Known) -> list[Rollout]:
        return [self._view(batch, known) for batch in reversed(self._batches.values())]

    # ---------------------------------------------------------------- inside

    def _file(self, batch: _Batch) -> None:
        for member in batch.members:
            self._members[member.who.trajectory_id] = member
        self._batches[batch.id] = batch
        while len(self._batches) > MOST_ROLLOUTS or len(self._members) > 4 * MAX_TRAJECTORIES:
            self._forget(next(iter(self._batches)))

    def _note(self, member: _Member) -> None:
        numbers = self._changed.setdefault(member.rollout, set())
        if numbers is not None:
            numbers.add(member.number)
        self.on_change()

    def _forget(self, rollout: str) -> None:
        self._changed.pop(rollout, None)
        self._gone.add(rollout)
        for member in self._batches.pop(rollout).members:
            self._members.pop(member.who.trajectory_id, None)

    def _view(self, batch: _Batch, known: Known) -> Rollout:
        waiting = [one for one in batch.members if self._state(one, known) == "waiting"]
        running = [one for one in batch.members if self._state(one, known) == "running"]
        finished = len(batch.members) - len(waiting) - len(running)
        begun = [one.first_at for one in batch.members if one.first_at is not None]
        last = [one.last_at for one in batch.members if one.last_at is not None]
        started_at = min(begun, default=None)
        is_over = not running and not waiting
        ended_at = max(last, default=None) if is_over else None
        now = time.time()
        remaining = {one.who.trajectory_id: self._remaining(one, known) for one in (*running, *waiting)}
        slowest = sorted(running, key=lambda one: -remaining[one.who.trajectory_id])
        return Rollout(
            id=batch.id,
            name=batch.asked.name,
            policy_version=batch.asked.policy_version,
            model=batch.asked.model,
            state="finished" if is_over else "announced" if started_at is None and not running else "running",
            created_at=batch.created_at,
            started_at=started_at,
            ended_at=ended_at,
            trajectories=len(batch.members),
            waiting=len(waiting),
            running=len(running),
            finished=finished,
            steps=sum(one.steps for one in batch.members),
            output_tokens=sum(one.output_tokens for one in batch.members),
            predicted_remaining=sum(remaining.values()),
            makespan_so_far_s=None if started_at is None else (ended_at or now) - started_at,
            expected_end_at=ended_at if is_over else _expected_end(batch.members, remaining, now),
            stragglers=tuple(
                Straggler(
                    trajectory_id=one.who.trajectory_id,
                    predicted_remaining=remaining[one.who.trajectory_id],
                    steps=one.steps,
                    worker=self._home(one, known),
                    phase=known.phase(one.live),
                )
                for one in slowest[:STRAGGLERS]
            ),
            plan_version=batch.plan_version,
        )

    def _state(self, member: _Member, known: Known) -> Literal["waiting", "running", "over"]:
        if member.over:
            return "over"
        if not member.live.has_arrived and not member.steps:
            return "waiting"
        return "running" if member.live.handle in known.rows else "over"

    def _remaining(self, member: _Member, known: Known) -> float:
        row = known.rows.get(member.live.handle) if member.live is not None else None
        return float(row[1]) if row is not None else float(member.who.predicted or 0.0)

    def _home(self, member: _Member, known: Known) -> str | None:
        row = known.rows.get(member.live.handle)
        return known.worker_name(row[5]) if row is not None and row[5] is not None else None


def _expected_end(members: Sequence[_Member], remaining: Mapping[str, float], now: float) -> float | None:
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
