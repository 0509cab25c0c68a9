import pytest
from heddle_gateway.fleet.errors import (
    BadAnswer,
    CannotAsk,
    EngineBusy,
    NoAnswerInTime,
    StillStarting,
    Unreachable,
)
from heddle_gateway.fleet.health import HealthLedger, Verdict
from heddle_gateway.fleet.state import LEGAL_MOVES, IllegalMove, WorkerState, check_move


def test_slow_probes_bring_a_worker_down_only_after_the_threshold_in_a_row() -> None:
    ledger = HealthLedger(failures_before_down=3, busy_limit_s=60)
    slow = NoAnswerInTime("slow")
    assert ledger.probe_failed(slow, 0.0) is Verdict.SUSPECT
    assert ledger.probe_failed(slow, 1.0) is Verdict.SUSPECT
    ledger.probe_answered()
    assert ledger.probe_failed(slow, 2.0) is Verdict.SUSPECT
    assert ledger.probe_failed(slow, 3.0) is Verdict.SUSPECT
    assert ledger.probe_failed(slow, 4.0) is Verdict.DOWN


def test_a_refused_connection_is_confirmed_once_and_then_believed() -> None:
    ledger = HealthLedger(failures_before_down=3, busy_limit_s=60)
    assert ledger.probe_failed(Unreachable("refused"), 0.0) is Verdict.CONFIRM
    assert ledger.probe_failed(Unreachable("refused"), 0.1) is Verdict.DOWN


def test_an_answer_between_two_refusals_clears_the_first() -> None:
    ledger = HealthLedger(failures_before_down=3, busy_limit_s=60)
    assert ledger.probe_failed(Unreachable("refused"), 0.0) is Verdict.CONFIRM
    ledger.probe_answered()
    assert ledger.probe_failed(Unreachable("refused"), 1.0) is Verdict.CONFIRM


def test_refusals_with_another_failure_between_are_not_in_a_row() -> None:
    ledger = HealthLedger(failures_before_down=10, busy_limit_s=60)
    ledger.probe_failed(Unreachable("refused"), 0.0)
    assert ledger.probe_failed(BadAnswer("500", 500), 1.0) is Verdict.SUSPECT
    assert ledger.probe_failed(Unreachable("refused"), 2.0) is Verdict.CONFIRM


def test_a_question_that_could_not_be_asked_counts_for_nothing() -> None:
    ledger = HealthLedger(failures_before_down=2, busy_limit_s=60)
    for second in range(100):
        assert ledger.probe_failed(CannotAsk("no file"), float(second)) is Verdict.BUSY
    assert ledger.probe_failed(Unreachable("refused"), 100.0) is Verdict.CONFIRM


@pytest.mark.parametrize("failure", [NoAnswerInTime("slow"), Unreachable("reset"), StillStarting("503")])
def test_a_worker_that_streams_while_its_probe_fails_is_busy(failure: NoAnswerInTime) -> None:
    ledger = HealthLedger(failures_before_down=1, busy_limit_s=60)
    ledger.sign_of_life(now=5.0)
    assert ledger.probe_failed(failure, started_at=4.0) is Verdict.BUSY
    assert ledger.failures == 0
    assert ledger.probe_failed(failure, started_at=6.0) is not Verdict.BUSY


def test_a_silent_engine_behind_a_server_that_answers_is_busy_for_a_bounded_time() -> None:
    ledger = HealthLedger(failures_before_down=2, busy_limit_s=60)
    busy = EngineBusy("loading weights")
    assert [ledger.probe_failed(busy, now) for now in (100.0, 130.0, 159.0)] == [Verdict.BUSY] * 3
    assert ledger.probe_failed(busy, 160.0) is Verdict.SUSPECT
    assert ledger.probe_failed(busy, 175.0) is Verdict.DOWN


def test_an_answer_ends_a_busy_time() -> None:
    ledger = HealthLedger(failures_before_down=1, busy_limit_s=60)
    busy = EngineBusy("loading weights")
    assert ledger.probe_failed(busy, 0.0) is Verdict.BUSY
    ledger.probe_answered()
    assert ledger.probe_failed(busy, 100.0) is Verdict.BUSY


def test_every_state_can_be_left_except_removed() -> None:
    assert set(LEGAL_MOVES) == set(WorkerState)
    assert [state for state, moves in LEGAL_MOVES.items() if not moves] == [WorkerState.REMOVED]


@pytest.mark.parametrize("state", [state for state in WorkerState if state is not WorkerState.REMOVED])
def test_removed_can_be_reached_from_every_state(state: WorkerState) -> None:
    reached, frontier = {state}, {state}
    while frontier:
        frontier = {target for source in frontier for target in LEGAL_MOVES[source]} - reached
        reached |= frontier
    assert WorkerState.REMOVED in reached


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (WorkerState.REMOVED, WorkerState.ACTIVE),
        (WorkerState.DRAINING, WorkerState.ACTIVE),
        (WorkerState.PROBING, WorkerState.DRAINING),
        (WorkerState.ACTIVE, WorkerState.ACTIVE),
    ],
)
def test_a_move_outside_the_table_is_a_fault(source: WorkerState, target: WorkerState) -> None:
    with pytest.raises(IllegalMove):
        check_move(source, target)
