"""The binding of the decision core: names, arguments, errors, and the replay of a journal."""

import json
import random
from types import SimpleNamespace

import pytest
from heddle_core import CancelMigration, Core, Dispatch, Expire, Migrate, Reject, Withdraw, replay
from heddle_core.names import Outcome

SECOND = 1_000_000
Action = Dispatch | Reject | Withdraw | Migrate | CancelMigration | Expire


def core_with_workers(
    policy: dict[str, object] | None = None, *, slots: int = 4, journal: bool = False
) -> Core:
    core = Core(json.dumps(policy or {}), journal=journal)
    for worker, degree in ((1, 4), (2, 1)):
        actions = core.worker_up(
            0, worker, 1, degree=degree, slots=slots, kv_tokens=0, has_priority=True, profile_json=None
        )
        assert actions == []
    return core


def end(core: Core, now: int, step: int, outcome: Outcome = "done", output_tokens: int = 10) -> list[Action]:
    return core.step_ended(
        now,
        step,
        outcome,
        prompt_tokens=100,
        output_tokens=output_tokens,
        cached_tokens=0,
    )


def test_a_step_is_dispatched_with_all_that_the_driver_needs() -> None:
    core = core_with_workers()
    (dispatch,) = core.step_arrived(5, 7, 70, group=None, prompt_tokens=100)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.step, dispatch.generation, dispatch.attempt) == (7, 1, 1)
    assert dispatch.worker in (1, 2)
    assert dispatch.priority == dispatch.level * 16
    assert dispatch.reason == "earliest_finish"
    assert repr(dispatch).startswith("Dispatch(step=7, worker=")
    with pytest.raises(AttributeError):
        dispatch.worker = 9


def test_each_kind_of_action_comes_out_as_its_class() -> None:
    core = Core()
    (reject,) = core.step_arrived(0, 1, 1, group=3, prompt_tokens=1)
    assert isinstance(reject, Reject)
    assert (reject.step, reject.status, reject.reason) == (1, 503, "no_worker")
    assert reject.retry_after_ms > 0
    assert end(core, 1, 1, "rejected") == []
    (expire,) = core.trajectory_finished(2, 1)
    assert isinstance(expire, Expire)
    assert (expire.trajectory, expire.reason) == (1, "finished")

    core = core_with_workers()
    (dispatch,) = core.step_arrived(0, 1, 1, group=None, prompt_tokens=1)
    assert isinstance(dispatch, Dispatch)
    (withdraw,) = core.worker_down(1, dispatch.worker, 1)
    assert isinstance(withdraw, Withdraw)
    assert (withdraw.step, withdraw.worker, withdraw.generation) == (1, dispatch.worker, 1)
    (again,) = core.attempt_failed(2, 1, dispatch.worker, 1, "unreachable")
    assert isinstance(again, Dispatch)
    assert again.worker != dispatch.worker
    assert again.attempt == 2


def test_errors_name_what_is_wrong_and_leave_the_core_as_it_was() -> None:
    core = core_with_workers()
    core.step_arrived(0, 1, 1, group=None, prompt_tokens=1)
    before = core.stats()
    for call, field in (
        (lambda: Core('{"order": "lifo"}'), "order: unknown variant `lifo`"),
        (lambda: Core('{"colour": 1}'), "colour: unknown field"),
        (lambda: core.set_policy(0, '{"max_attempts": 0}'), "max_attempts: must be at least 1"),
        (lambda: core.install_plan(0, '{"version": 1, "partition": []}'), "partition: sizes must add up"),
        (lambda: core.install_plan(0, "{}"), "plan_json: missing field `version`"),
        (lambda: core.predicted(0, 1, float("nan"), 0.1), "mean: "),
        (lambda: core.predicted(0, 99, 1.0, 0.1), "trajectory 99 is not known"),
        (lambda: core.step_arrived(0, 1, 1, group=None, prompt_tokens=1), "step 1 has arrived before"),
        (lambda: end(core, 0, 2), "step 2 is not live"),
        (lambda: end(core, 0, 1, "finished"), "outcome: "),  # type: ignore[arg-type]
        (lambda: core.attempt_failed(0, 1, 1, 1, "tired"), "kind: "),  # type: ignore[arg-type]
        (
            lambda: core.worker_up(0, 3, 1, degree=1, slots=0, kv_tokens=0, has_priority=False),
            "slots: must be at least 1",
        ),
        (
            lambda: core.worker_up(
                0, 3, 1, degree=1, slots=1, kv_tokens=0, has_priority=False, profile_json='{"token_us": -1}'
            ),
            "profile_json: token_us",
        ),
        (lambda: replay(b""), "journal line 1"),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(field)
    after = core.stats()
    assert {name for name in after if after[name] != before[name]} == {"events_total", "refused_events_total"}
    assert core.audit() == []


def test_ids_are_unsigned_64_bit() -> None:
    core = core_with_workers()
    top = 2**64 - 1
    (dispatch,) = core.step_arrived(0, top, top, group=top, prompt_tokens=1)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.step == top
    with pytest.raises(OverflowError):
        core.first_byte(0, -1)


def test_the_policy_reads_back_and_changes_by_field() -> None:
    core = Core('{"order": "fcfs"}')
    core.set_policy(0, '{"placement": "sticky", "max_wait_ms": 5}')
    policy = json.loads(core.policy_json())
    assert (policy["order"], policy["placement"], policy["max_wait_ms"]) == ("fcfs", "sticky", 5)
    assert json.loads(Core(core.policy_json()).policy_json()) == policy


def test_the_hash_chain_is_asked_for_only_by_cache_aware_placement() -> None:
    asked = []

    def chain() -> list[int]:
        asked.append(1)
        return [11, 12, 13]

    body = SimpleNamespace(chain=chain)
    core = core_with_workers({"placement": "sticky"})
    core.step_arrived(0, 1, 1, group=None, prompt_tokens=1, body=body)
    assert asked == []
    core = core_with_workers({"placement": "cache_aware"})
    (first,) = core.step_arrived(0, 1, 1, group=None, prompt_tokens=1, body=body)
    (second,) = core.step_arrived(0, 2, 2, group=None, prompt_tokens=1, body=body)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert (second.worker, second.reason) == (first.worker, "cache")
    assert asked == [1, 1]


def test_a_held_step_is_let_go_by_its_timer() -> None:
    core = core_with_workers({"abort_wait_ms": 2000})
    core.step_arrived(0, 1, 1, group=None, prompt_tokens=1)
    core.step_aborting(10, 1)
    assert core.step_arrived(20, 2, 1, group=None, prompt_tokens=1) == []
    view = core.trajectory_view(1)
    assert view is not None
    assert view["phase"] == "aborting"
    assert [step["state"] for step in view["live_steps"]] == ["aborting", "held_predecessor"]
    due = core.poll_timeout()
    assert due == 20 + 2 * SECOND
    assert core.handle_timeout(due - 1) == []
    (dispatch,) = core.handle_timeout(due)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.step == 2


def test_views_and_stats_agree_with_what_was_done() -> None:
    core = core_with_workers({"order": "fcfs", "placement": "least_load"}, slots=1)
    for step in range(1, 4):
        core.step_arrived(step, step, step, group=None, prompt_tokens=50)
    core.first_byte(5, 1)
    stats = core.stats()
    assert (stats["steps_live"], stats["steps_at_worker"], stats["steps_held_slot"]) == (3, 2, 1)
    assert stats["trajectories_running"] == 2
    assert stats["trajectories_waiting"] == 1
    workers = core.worker_views()
    assert [worker["worker"] for worker in workers] == [1, 2]
    assert sum(worker["queued"] for worker in workers) == 1
    (dispatch,) = end(core, 10, 1)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.step == 3
    view = core.trajectory_view(1)
    assert view is not None
    assert (view["phase"], view["generated"], view["context_tokens"]) == ("in_tool_gap", 10, 110)
    assert core.trajectory_view(99) is None


def drive(core: Core, seed: int) -> int:
    """A driver that answers every action; returns how many there were."""
    draw = random.Random(seed)
    now, step, actions = 0, 0, 0
    running: dict[int, tuple[int, int]] = {}
    rejected: list[int] = []

    def carry_out(caused: list[Action]) -> None:
        nonlocal actions
        for action in caused:
            actions += 1
            if isinstance(action, Dispatch):
                running[action.step] = (action.worker, action.generation)
            elif isinstance(action, Reject):
                rejected.append(action.step)

    for _ in range(400):
        now += draw.randrange(200_000)
        carry_out(core.handle_timeout(now))
        choice = draw.random()
        if choice < 0.5 or not running:
            step += 1
            carry_out(
                core.step_arrived(now, step, draw.randrange(20), group=draw.randrange(4), prompt_tokens=500)
            )
        elif choice < 0.6:
            failed = draw.choice(list(running))
            worker, generation = running.pop(failed)
            carry_out(core.attempt_failed(now, failed, worker, generation, "overloaded"))
        elif choice < 0.7:
            carry_out(core.predicted(now, draw.choice([1, 2]), draw.uniform(1, 50_000), 0.5))
        else:
            ended = draw.choice(list(running))
            del running[ended]
            carry_out(end(core, now, ended, output_tokens=draw.randrange(2000)))
        while rejected:
            carry_out(end(core, now, rejected.pop(), "rejected"))
        assert core.audit() == []
    return actions


@pytest.mark.parametrize("placement", ["least_load", "by_rank"])
def test_a_journal_replays_to_the_same_decisions(placement: str) -> None:
    core = core_with_workers({"placement": placement}, slots=2, journal=True)
    for trajectory in (1, 2):
        core.step_arrived(0, 10_000 + trajectory, trajectory, group=None, prompt_tokens=500)
        end(core, 0, 10_000 + trajectory)
    actions = 2 + drive(core, seed=1)
    journal = core.take_journal()
    assert core.take_journal() == b""
    result = replay(journal)
    assert result["events"] == journal.count(b"\n") - 1
    assert result["actions"] == actions > 100
    assert replay(journal) == result
    other = replay(journal, '{"order": "fcfs", "placement": "round_robin"}')
    assert other["digest"] != result["digest"]


def test_without_a_journal_nothing_is_written_down() -> None:
    core = core_with_workers()
    core.step_arrived(0, 1, 1, group=None, prompt_tokens=1)
    assert core.take_journal() == b""


def linked_core(policy: dict[str, object] | None = None) -> Core:
    """Two workers that can move KV; trajectory 1 is at home on the first of them."""
    core = Core(json.dumps({"placement": "sticky", "migration": "never"} | (policy or {})))
    for worker in (1, 2):
        core.worker_up(
            0,
            worker,
            1,
            degree=1,
            slots=4,
            kv_tokens=0,
            has_priority=True,
            transfer_tokens_per_s=1e6,
            transfer_setup_us=1000,
            weights=3,
        )
    core.step_arrived(0, 1, 1, group=None, prompt_tokens=100)
    end(core, SECOND, 1, output_tokens=50)
    return core


def test_a_move_is_ordered_with_all_that_the_driver_needs_and_told_of_until_it_has_ended() -> None:
    core = linked_core()
    (migrate,) = core.migration_asked(SECOND, 1, 2)
    assert isinstance(migrate, Migrate)
    assert (migrate.trajectory, migrate.from_worker, migrate.to_worker) == (1, 1, 2)
    assert (migrate.from_generation, migrate.to_generation, migrate.tokens) == (1, 1, 150)
    assert (migrate.within_us, migrate.worth_us) == (30 * SECOND, None)
    assert repr(migrate).startswith(f"Migrate(migration={migrate.migration}, trajectory=1, from_worker=1")
    (view,) = core.move_views()
    assert (view["state"], view["asked_by"], view["expected_us"]) == ("moving", "operator", 1150)
    assert core.migration_landed(SECOND + 1200, migrate.migration, 144) == []
    assert core.move_views() == []
    trajectory = core.trajectory_view(1)
    assert trajectory is not None
    assert (trajectory["home"], trajectory["resident_tokens"]) == (2, 144)


def test_a_move_is_called_off_when_its_trajectory_ends_and_its_end_is_still_taken() -> None:
    core = linked_core()
    (migrate,) = core.migration_asked(SECOND, 1, 2, within_us=250_000)
    assert isinstance(migrate, Migrate)
    assert migrate.within_us == 250_000
    cancel, expire = core.trajectory_finished(SECOND, 1)
    assert isinstance(cancel, CancelMigration)
    assert (cancel.migration, cancel.from_worker, cancel.to_worker) == (migrate.migration, 1, 2)
    assert isinstance(expire, Expire)
    assert core.migration_failed(SECOND, migrate.migration, "cancelled") == []
    assert core.stats()["migrations_cancelled_total"] == 1
    assert core.audit() == []


def test_other_weights_void_the_kv_and_refusals_name_the_field() -> None:
    core = linked_core()
    assert core.weights_updated(SECOND, 1, 1, 4) == []
    trajectory = core.trajectory_view(1)
    assert trajectory is not None
    assert trajectory["resident_tokens"] == 0
    with pytest.raises(ValueError, match="trajectory: has no KV that is known of"):
        core.migration_asked(SECOND, 1, 2)
    with pytest.raises(ValueError, match="trajectory 9 is not known"):
        core.migration_asked(SECOND, 9, 2)
    with pytest.raises(ValueError, match="within_us: must be above 0"):
        core.migration_asked(SECOND, 1, 2, within_us=0)
    with pytest.raises(ValueError, match="why: "):
        core.migration_failed(SECOND, 1, "tired")  # type: ignore[arg-type]


def test_an_adopted_step_is_counted_where_it_runs_and_not_sent() -> None:
    core = core_with_workers({"placement": "sticky"}, slots=1)
    actions = core.step_adopted(
        5, 7, 70, group=None, prompt_tokens=9, worker=2, generation=1, level=3, running_us=5, streaming=True
    )
    assert actions == []
    [running] = [view["running"] for view in core.worker_views() if view["worker"] == 2]
    assert running == 1
    assert core.stats()["steps_adopted_total"] == 1
    assert end(core, 6, 7) == []
    with pytest.raises(ValueError, match="step 7"):
        end(core, 7, 7)


def test_actions_can_be_made_by_name() -> None:
    dispatch = Dispatch(step=1, worker=2, generation=3, priority=48, level=3, attempt=1, reason="x")
    assert (dispatch.worker, dispatch.level, dispatch.reason) == (2, 3, "x")
    assert repr(Reject(step=1, status=503, reason="no_worker", retry_after_ms=5)) == (
        'Reject(step=1, status=503, reason="no_worker", retry_after_ms=5)'
    )


def test_in_a_pause_a_step_waits_and_goes_on_after_it() -> None:
    core = linked_core()
    assert core.dispatch_paused(SECOND, True) == []
    assert core.step_arrived(SECOND, 2, 1, group=None, prompt_tokens=100) == []
    assert (core.stats()["dispatch_paused"], core.stats()["steps_held_slot"]) == (1, 1)
    (dispatch,) = core.dispatch_paused(2 * SECOND, False)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.step == 2
    assert core.audit() == []
