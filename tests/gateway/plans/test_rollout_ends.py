"""When a rollout is over of which nobody says so: by its members' answers, or as they have gone quiet."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from heddle_contracts.rollouts import Rollout, RolloutCreate
from heddle_contracts.steps import Outcome
from heddle_gateway.plans.rollout_progress import ANSWERED_S, Known
from heddle_gateway.plans.rollouts import RolloutBook

QUIET_S = 60.0
LONG_AGO_S = ANSWERED_S + 1.0


class Batch:
    """A rollout of two trajectories whose steps ended when the test says. ``live``: with running steps."""

    def __init__(self) -> None:
        self.book = RolloutBook()
        self.live: set[int] = set()
        asked = RolloutCreate(lengths=[100, 100])
        self.id, members, _ = self.book.draft(asked, room=10, known=self.known)
        self.ids = [one.trajectory_id for one in members]
        entries = [SimpleNamespace(handle=number, has_arrived=False) for number in range(len(members))]
        self.book.keep(self.id, asked, [(one, 0.5, live) for one, live in zip(members, entries, strict=True)])
        self._entries = entries

    @property
    def known(self) -> Known:
        """The core ranks both."""
        rows: dict[int, Any] = {number: (number, 40, 0.5, 100, 60, None) for number in range(2)}
        return Known(rows, lambda home: None, self._view, QUIET_S)

    def _view(self, live: Any) -> dict[str, Any]:
        runs = live.handle in self.live
        return {
            "phase": "running" if runs else "in_tool_gap",
            "live_steps": [{}] * runs,
            "remaining": 40,
        }

    def step(self, member: int, *, ago_s: float, **more: Any) -> None:
        """One that took a second and ended so long ago: an answer without tools, or as ``more`` says."""
        ended_at = time.time() - ago_s
        said: dict[str, Any] = {
            "outcome": Outcome.DONE,
            "finish_reason": "stop",
            "tool_names": (),
            "arrived_at": ended_at - 1.0,
        }
        self._entries[member].has_arrived = True
        self.book.step_ended(
            SimpleNamespace(
                trajectory_id=self.ids[member], output_tokens=30, ended_at=ended_at, **said | more
            )
        )

    def look(self) -> Rollout:
        found = self.book.view(self.id, self.known)
        assert found is not None
        return found


@pytest.mark.parametrize("reason", ["stop", "length", "end_turn", "completed"])
def test_a_rollout_whose_members_have_all_answered_is_over_soon(reason: str) -> None:
    batch = Batch()
    batch.step(0, ago_s=40.0, tool_names=("bash",), finish_reason="tool_calls")
    for member in range(2):
        batch.step(member, ago_s=LONG_AGO_S, finish_reason=reason)
    over = batch.look()
    assert (over.state, over.finished, over.answered, over.quiet) == ("finished", 2, 2, 0)
    assert over.ended_at is not None
    assert over.ended_at < time.time() - ANSWERED_S, "the wait is no part of the makespan"


def test_an_answer_is_given_a_while_to_be_gone_on_from() -> None:
    batch = Batch()
    for member in range(2):
        batch.step(member, ago_s=1.0)
    running = batch.look()
    assert (running.state, running.running, running.answered) == ("running", 2, 2)


@pytest.mark.parametrize(
    "last",
    [
        {"tool_names": ("bash",)},
        {"finish_reason": "tool_calls"},
        {"finish_reason": "tool_use"},
        {"outcome": Outcome.ABORTED},
        {"outcome": Outcome.WORKER_LOST},
    ],
    ids=str,
)
def test_what_is_no_answer_leaves_a_member_running_until_it_has_gone_quiet(last: dict[str, Any]) -> None:
    batch = Batch()
    batch.step(0, ago_s=LONG_AGO_S)
    batch.step(1, ago_s=LONG_AGO_S, **last)
    running = batch.look()
    assert (running.state, running.running, running.finished) == ("running", 1, 1)


def test_where_one_has_gone_on_after_an_answer_only_a_long_silence_tells() -> None:
    batch = Batch()
    batch.step(0, ago_s=LONG_AGO_S + 20.0)
    batch.step(0, ago_s=LONG_AGO_S)
    batch.step(1, ago_s=LONG_AGO_S)
    running = batch.look()
    assert (running.state, running.running, running.answered) == ("running", 2, 0)


def test_a_step_that_ran_beside_the_answer_did_not_go_on_after_it() -> None:
    batch = Batch()
    batch.step(0, ago_s=LONG_AGO_S + 0.5)
    batch.step(0, ago_s=LONG_AGO_S)  # came half a second before the other's end
    batch.step(1, ago_s=LONG_AGO_S)
    assert batch.look().state == "finished"


def test_a_member_with_a_running_step_is_not_over() -> None:
    batch = Batch()
    for member in range(2):
        batch.step(member, ago_s=LONG_AGO_S)
    batch.live.add(1)
    running = batch.look()
    assert (running.state, running.running, running.answered) == ("running", 1, 1)


def test_a_member_that_has_not_come_keeps_a_rollout_open() -> None:
    batch = Batch()
    batch.step(0, ago_s=LONG_AGO_S)
    assert (batch.look().state, batch.look().waiting) == ("running", 1)


def test_who_takes_a_rollout_over_knows_what_answers_mean_there() -> None:
    batch = Batch()
    batch.step(0, ago_s=LONG_AGO_S + 20.0)
    batch.step(0, ago_s=LONG_AGO_S)
    batch.step(1, ago_s=LONG_AGO_S)
    taken = RolloutBook()
    taken.restore(batch.book.state_of(batch.id), batch._entries)
    found = taken.view(batch.id, batch.known)
    assert found is not None
    assert (found.state, found.answered) == ("running", 0)
