"""The core driven live: decisions reach their tickets, time passes through one timer, a journal replays."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from heddle_core import replay, scan_body
from heddle_gateway.live.decisions import Dispatch, Reject
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.journal import JournalWriter
from heddle_gateway.live.moves_wanted import MoveRefused
from heddle_gateway.live.policy import PolicyRefused, new_core

Until = Callable[..., Awaitable[None]]
SCAN = scan_body(b'{"messages":[{"role":"user","content":"hi"}]}', "chat")
SLOTS = {"order": "fcfs", "placement": "sticky", "admission": "unlimited"}


@dataclass
class Facts:
    worker_id: int = 1
    generation: int = 1
    name: str = "worker"
    degree: int = 1
    slots: int = 1
    kv_tokens: int = 0
    has_priority: bool = True
    weight_version: str | None = None


@dataclass
class Who:
    trajectory_id: str = "t"
    source: str = "header"
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    step: int = 0
    segment: int = 0


class Bench:
    """A driver, and what it told about expired trajectories."""

    def __init__(
        self, policy: dict[str, Any] | None = None, limit: int = 1000, journal: bool = False
    ) -> None:
        self.expired: list[tuple[str, str]] = []
        self.withdrawn: list[int] = []
        self.driver = Driver(
            new_core(policy or SLOTS, journal=journal),
            Directory(),
            max_trajectories=limit,
            on_expire=self._on_expire,
        )

    def _on_expire(self, live: LiveTrajectory, reason: str) -> None:
        self.expired.append((live.trajectory_id, reason))

    def arrive(self, trajectory_id: str = "t", group: str | None = None) -> Any:
        live = self.driver.directory.open(Who(trajectory_id, group_id=group), tenant="", model="m")
        ticket: Any = None
        ticket = self.driver.arrive(
            live, prompt_tokens=10, scan=SCAN, on_withdraw=lambda: self.withdrawn.append(ticket.step)
        )
        return ticket

    def end(self, ticket: Any) -> None:
        self.driver.end(ticket, "done", prompt_tokens=10, output_tokens=5, cached_tokens=0)


async def test_a_free_worker_is_decided_at_once_without_a_wait() -> None:
    bench = Bench()
    bench.driver.workers.up(Facts())
    ticket = bench.arrive()
    assert isinstance(ticket.decision, Dispatch)
    assert (ticket.decision.worker, ticket.decision.generation, ticket.decision.attempt) == (1, 1, 1)
    bench.end(ticket)
    assert bench.driver.live_steps == 0
    bench.driver.close()


async def test_a_held_step_is_decided_when_a_slot_comes_free() -> None:
    bench = Bench()
    bench.driver.workers.up(Facts())
    first, second = bench.arrive("a"), bench.arrive("b")
    assert second.decision is None
    waiting = asyncio.create_task(second.decided())
    await asyncio.sleep(0)
    bench.end(first)
    assert isinstance(await waiting, Dispatch)
    bench.end(second)
    bench.driver.close()


async def test_without_a_worker_a_step_is_rejected() -> None:
    bench = Bench()
    ticket = bench.arrive()
    decision = await ticket.decided()
    assert isinstance(decision, Reject)
    assert decision.status == 503
    bench.driver.end(ticket, "rejected", prompt_tokens=0, output_tokens=0, cached_tokens=0)
    bench.driver.close()


async def test_a_lost_worker_takes_its_attempts_back_and_they_go_elsewhere() -> None:
    bench = Bench()
    bench.driver.workers.up(Facts(worker_id=1))
    bench.driver.workers.up(Facts(worker_id=2))
    ticket = bench.arrive()
    gone = ticket.decision
    bench.driver.workers.down(gone.worker, gone.generation)
    assert bench.withdrawn == [ticket.step]
    bench.driver.attempt_failed(ticket, gone, "unreachable")
    assert ticket.decision.worker != gone.worker
    bench.end(ticket)
    bench.driver.close()


async def test_the_timer_lets_a_step_through_that_waits_for_an_abort_too_long(until: Until) -> None:
    bench = Bench(SLOTS | {"abort_wait_ms": 30})
    bench.driver.workers.up(Facts(slots=4))
    first = bench.arrive()
    bench.driver.aborting(first)
    second = bench.arrive()
    assert second.decision is None
    async with asyncio.timeout(5):
        assert isinstance(await second.decided(), Dispatch)
    bench.driver.end(first, "aborted", prompt_tokens=0, output_tokens=0, cached_tokens=0)
    bench.end(second)
    assert bench.driver.audit() == []
    bench.driver.close()


async def test_a_finished_trajectory_is_forgotten_after_its_last_step() -> None:
    bench = Bench()
    bench.driver.workers.up(Facts())
    ticket = bench.arrive("t")
    live = bench.driver.directory.find("t", "")
    assert live is not None
    bench.driver.finish(live)
    assert bench.expired == []
    bench.end(ticket)
    assert bench.expired == [("t", "finished")]
    assert len(bench.driver.directory) == 0
    bench.driver.close()


async def test_an_idle_trajectory_expires_by_the_timer(until: Until) -> None:
    bench = Bench(SLOTS | {"idle_ttl_ms": 30})
    bench.driver.workers.up(Facts())
    bench.end(bench.arrive("t"))
    await until(lambda: bench.expired == [("t", "idle")], "the trajectory to expire")
    bench.driver.close()


async def test_more_trajectories_than_allowed_close_the_oldest() -> None:
    bench = Bench(limit=3)
    bench.driver.workers.up(Facts())
    for name in ("a", "b", "c", "a", "d", "e"):
        bench.end(bench.arrive(name))
    assert bench.expired == [("b", "finished"), ("c", "finished")]
    assert [live.trajectory_id for live in bench.driver.directory] == ["a", "d", "e"]
    bench.driver.close()


async def test_a_busy_oldest_one_does_not_keep_the_others_in_memory() -> None:
    bench = Bench(limit=2)
    bench.driver.workers.up(Facts(slots=8))
    busy = bench.arrive("busy")
    for name in ("b", "c", "d"):
        bench.end(bench.arrive(name))
    assert len(bench.driver.directory) <= 3
    bench.end(busy)
    assert ("busy", "finished") in bench.expired
    bench.driver.close()


async def test_a_step_can_be_ended_once() -> None:
    bench = Bench()
    bench.driver.workers.up(Facts())
    ticket = bench.arrive()
    bench.end(ticket)
    with pytest.raises(KeyError):
        bench.end(ticket)
    bench.driver.close()


async def test_the_policy_changes_live_and_keeps_what_was_not_named() -> None:
    bench = Bench(SLOTS | {"max_attempts": 7})
    changed = bench.driver.change_policy({"order": "longest_first"})
    assert (changed["order"], changed["placement"], changed["max_attempts"]) == ("longest_first", "sticky", 7)
    assert bench.driver.policy() == changed
    bench.driver.close()


@pytest.mark.parametrize("change", [{"order": "fastest"}, {"no_such_field": 1}, {"max_attempts": "many"}])
async def test_a_policy_that_cannot_be_is_refused_by_the_name_of_its_field(change: dict[str, Any]) -> None:
    bench = Bench()
    before = bench.driver.policy()
    with pytest.raises(PolicyRefused, match=next(iter(change))):
        bench.driver.change_policy(change)
    assert bench.driver.policy() == before
    with pytest.raises(PolicyRefused, match=next(iter(change))):
        new_core(change, journal=False)
    bench.driver.close()


async def test_two_tenants_may_use_one_trajectory_id() -> None:
    directory = Directory()
    one = directory.open(Who("t"), tenant="a", model=None)
    two = directory.open(Who("t"), tenant="b", model=None)
    assert one.handle != two.handle
    assert directory.named("t") == [one, two]
    directory.forget(one.handle)
    assert directory.named("t") == [two]
    assert directory.find("t", "a") is None


async def test_siblings_share_a_group_for_as_long_as_one_of_them_lives() -> None:
    directory = Directory()
    first = directory.open(Who("a", group_id="g"), tenant="", model=None)
    second = directory.open(Who("b", group_id="g"), tenant="", model=None)
    other = directory.open(Who("c", group_id="g"), tenant="else", model=None)
    assert first.group == second.group is not None
    assert other.group != first.group
    directory.forget(first.handle)
    third = directory.open(Who("d", group_id="g"), tenant="", model=None)
    assert third.group == second.group
    for live in (second, third):
        directory.forget(live.handle)
    assert directory.open(Who("e", group_id="g"), tenant="", model=None).group != second.group


def test_a_repeat_of_an_earlier_step_does_not_take_a_trajectory_back() -> None:
    directory = Directory()
    for step, segment in ((0, 0), (3, 1), (1, 0)):
        live = directory.open(Who("t", step=step, segment=segment), tenant="", model=None)
    assert (live.step, live.segment) == (3, 1)


async def test_a_live_run_replays_from_its_journal(tmp_path: Path) -> None:
    bench = Bench(journal=True)
    bench.driver.workers.up(Facts(slots=2))
    for round_ in range(20):
        tickets = [bench.arrive(f"t{number}") for number in range(4)]
        for ticket in tickets:
            bench.end(ticket)
        if round_ == 10:
            bench.driver.change_policy({"order": "longest_first"})
    writer = JournalWriter(bench.driver.take_journal, tmp_path / "journal.jsonl")
    await writer.flush()
    bench.end(bench.arrive("late"))
    await writer.flush()
    journal = (tmp_path / "journal.jsonl").read_bytes()
    assert all(json.loads(line) is not None for line in journal.splitlines())
    first, second = replay(journal), replay(journal)
    assert first == second
    assert first["events"] > 160
    shorter = b"\n".join(journal.splitlines()[:-3]) + b"\n"
    assert replay(shorter)["digest"] != first["digest"]
    bench.driver.close()


class Moves:
    """What the driver wants moved, and called off."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, Any]] = []
        self.cancelled: list[int] = []

    def begin(self, action: Any, live: LiveTrajectory) -> None:
        self.begun.append((live.trajectory_id, action))

    def cancel(self, action: Any) -> None:
        self.cancelled.append(action.migration)


def two_linked_workers() -> tuple[Bench, Moves]:
    bench, moves = Bench(SLOTS | {"migration": "never"}), Moves()
    bench.driver.mover = moves
    for worker in (1, 2):
        bench.driver.workers.up(Facts(worker_id=worker, slots=4, weight_version="a"))
        bench.driver.workers.linked(worker, 1, 1e6, 1000, "a")
    return bench, moves


def home_of(bench: Bench, name: str = "t") -> Any:
    live = bench.driver.directory.find(name, "")
    assert live is not None
    view = bench.driver.trajectory_view(live)
    assert view is not None
    return live, view["home"], view["resident_tokens"]


async def test_a_move_that_a_person_wants_begins_in_the_gap_and_its_landing_is_the_new_home() -> None:
    bench, moves = two_linked_workers()
    bench.end(bench.arrive())
    live, here, _ = home_of(bench)
    bench.driver.ask_migration(live, 3 - here)
    [(name, action)] = moves.begun
    assert (name, action.from_worker, action.to_worker) == ("t", here, 3 - here)
    [view] = bench.driver.move_views()
    assert (view["migration"], view["state"]) == (action.migration, "moving")
    bench.driver.migration_landed(action.migration, 15)
    assert home_of(bench)[1:] == (3 - here, 15)
    with pytest.raises(MoveRefused, match="to: is where the trajectory is"):
        bench.driver.ask_migration(live, 3 - here)
    assert bench.driver.audit() == []
    bench.driver.close()


async def test_new_weights_call_a_move_off_and_take_the_link_until_the_shim_is_asked_again() -> None:
    bench, moves = two_linked_workers()
    bench.end(bench.arrive())
    live, here, _ = home_of(bench)
    bench.driver.ask_migration(live, 3 - here)
    [(_, action)] = moves.begun
    bench.driver.workers.weights_updated(here, 1, "b")
    assert moves.cancelled == [action.migration]
    bench.driver.migration_failed(action.migration, "cancelled")
    assert home_of(bench)[1:] == (here, 0)
    with pytest.raises(MoveRefused, match="trajectory: has no KV"):
        bench.driver.ask_migration(live, 3 - here)
    linked = {view["worker"]: view["can_migrate"] for view in bench.driver.worker_views()}
    assert linked == {here: False, 3 - here: True}
    bench.driver.workers.linked(here, 1, 1e6, 1000, "b")
    assert all(view["can_migrate"] for view in bench.driver.worker_views())
    bench.driver.close()


async def test_a_draining_worker_is_not_brought_back_by_what_its_shim_says_late() -> None:
    bench, _ = two_linked_workers()
    bench.driver.workers.draining(1, 1)
    bench.driver.workers.linked(1, 1, 1e6, 1000, "a")
    states = {view["worker"]: view["state"] for view in bench.driver.worker_views()}
    assert states == {1: "draining", 2: "active"}
    bench.driver.close()
