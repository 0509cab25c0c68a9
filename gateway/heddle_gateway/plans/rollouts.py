"""Batches that were announced: who belongs to them and how far they are.

Invariants: a member counts as waiting, running or finished by what the core and its step records say now;
nothing is counted beside that. The number of rollouts and of their members is bounded: finished ones go for
new ones, oldest first, and while none has finished no other is taken. What has changed is told once to who
keeps a copy (`take_changes`).
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from heddle_contracts.live_state import MemberProgress, MemberState, RolloutState
from heddle_contracts.rollouts import (
    MAX_TRAJECTORIES,
    Rollout,
    RolloutCreate,
    RolloutCreated,
    RolloutMember,
    RolloutTrajectories,
    RolloutTrajectory,
)
from heddle_contracts.steps import Outcome

from heddle_gateway.plans.rollout_progress import (
    Batch,
    Known,
    Live,
    Member,
    is_over,
    remaining_of,
    rollout_of,
    stands_of,
)

MOST_ROLLOUTS: Final = 64
MOST_MEMBERS: Final = 4 * MAX_TRAJECTORIES
GIVEN_SIGMA: Final = 0.5
"""Spread of the logarithm around a length that the caller gives: samples of one prompt differ by about
that.
"""

ASKS_FOR_TOOLS: Final = frozenset({"tool_calls", "function_call", "tool_use"})
"""Finish reasons of answers that call tools, for those whose calls were not read."""


class RolloutRefused(Exception):
    """A batch that cannot be taken; ``field`` is at fault."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class RolloutsFull(Exception):
    """As many are kept as can be, and none of them has finished."""


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
    @property
    def outcome(self) -> Outcome: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def tool_names(self) -> tuple[str, ...]: ...


class RolloutBook:
    """``announce`` makes a live entry of a member: (member, model, rollout id, mean, sigma)."""

    def __init__(self) -> None:
        self._batches: OrderedDict[str, Batch] = OrderedDict()
        self._members: dict[str, Member] = {}
        # Numbers of the members that went on; None where all of a rollout is new.
        self._changed: dict[str, set[int] | None] = {}
        self._gone: set[str] = set()
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._batches

    def draft(
        self, asked: RolloutCreate, *, room: int, known: Known
    ) -> tuple[str, list[RolloutMember], list[int]]:
        """Ids for a batch: (rollout id, members, prompt tokens of each). Nothing is kept yet, but finished
        ones may make room. Raises RolloutRefused, RolloutsFull.
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
        self._make_room(count, known)
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
        batch = Batch(rollout, asked, time.time())
        batch.members = [
            Member(who, sigma, live, rollout, number) for number, (who, sigma, live) in enumerate(members)
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
        # One that ran beside the answer does not go on after it.
        if member.answered and member.last_at is not None and step.arrived_at >= member.last_at:
            member.went_on = True
        member.answered = (
            step.outcome is Outcome.DONE and not step.tool_names and step.finish_reason not in ASKS_FOR_TOOLS
        )
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
        batch = Batch(state.id, asked, state.created_at, plan_version=state.plan_version)
        for number, (member, progress, live) in enumerate(
            zip(state.members, state.progress, lives, strict=True)
        ):
            batch.members.append(
                Member(
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
                    answered=progress.answered,
                    went_on=progress.went_on,
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
            rollout=rollout_of(batch, known), trajectories=tuple(member.who for member in batch.members)
        )

    def view(self, rollout: str, known: Known) -> Rollout | None:
        batch = self._batches.get(rollout)
        return None if batch is None else rollout_of(batch, known)

    def trajectories(self, rollout: str, known: Known) -> RolloutTrajectories | None:
        batch = self._batches.get(rollout)
        if batch is None:
            return None
        items = []
        for member, (state, _) in zip(batch.members, stands_of(batch, known), strict=True):
            items.append(
                RolloutTrajectory(
                    trajectory_id=member.who.trajectory_id,
                    group_id=member.who.group_id,
                    sample=member.who.sample,
                    state=state,
                    steps=member.steps,
                    output_tokens=member.output_tokens,
                    predicted_remaining=0.0 if state == "over" else remaining_of(member, known),
                )
            )
        return RolloutTrajectories(items=tuple(items))

    def newest_first(self, known: Known) -> list[Rollout]:
        return [rollout_of(batch, known) for batch in reversed(self._batches.values())]

    # ---------------------------------------------------------------- inside

    def _file(self, batch: Batch) -> None:
        for member in batch.members:
            self._members[member.who.trajectory_id] = member
        self._batches[batch.id] = batch
        # More than there was room for only where several came, or were taken up, at the same time.
        while len(self._batches) > MOST_ROLLOUTS or len(self._members) > MOST_MEMBERS:
            self._forget(next(iter(self._batches)))

    def _make_room(self, members: int, known: Known) -> None:
        """For one more rollout of so many members. Raises RolloutsFull."""
        while len(self._batches) >= MOST_ROLLOUTS or len(self._members) + members > MOST_MEMBERS:
            finished = next((one.id for one in self._batches.values() if is_over(one, known)), None)
            if finished is None:
                raise RolloutsFull(f"{len(self._batches)} rollouts are kept and none of them has finished")
            self._forget(finished)

    def _note(self, member: Member) -> None:
        numbers = self._changed.setdefault(member.rollout, set())
        if numbers is not None:
            numbers.add(member.number)
        self.on_change()

    def _forget(self, rollout: str) -> None:
        self._changed.pop(rollout, None)
        self._gone.add(rollout)
        for member in self._batches.pop(rollout).members:
            self._members.pop(member.who.trajectory_id, None)
