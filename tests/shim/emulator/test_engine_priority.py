"""Priorities: who enters first, and when somebody is preempted."""

from collections.abc import Callable

from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.generation import Ending, Generation, State

MakeEngine = Callable[..., Engine]
MakeGeneration = Callable[..., Generation]


def finish_order(engine: Engine) -> list[str]:
    engine.advance(1e6)
    return [generation.rid for generation in engine.take_finished()]


def test_waiting_requests_enter_by_priority_then_by_arrival(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1)
    engine.submit(0.0, [make_generation(priority=9)])
    waiting = [make_generation(priority=priority) for priority in (1, 5, 5, None, 9)]
    for at, generation in enumerate(waiting):
        engine.submit(1.0 + at, [generation])
    order = finish_order(engine)[1:]
    assert order == [waiting[index].rid for index in (4, 1, 2, 0, 3)]


def test_without_priority_scheduling_the_first_come_is_the_first_served(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1, enable_priority_scheduling=False)
    batch = [make_generation(priority=priority) for priority in (1, 50, 100)]
    engine.submit(0.0, batch)
    assert finish_order(engine) == [generation.rid for generation in batch]


def test_low_values_first_turns_the_order_around(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1, schedule_low_priority_values_first=True)
    engine.submit(0.0, [make_generation(priority=0)])
    waiting = [make_generation(priority=priority) for priority in (7, None, 3)]
    engine.submit(1.0, waiting)
    assert finish_order(engine)[1:] == [waiting[index].rid for index in (2, 0, 1)]


def test_a_difference_equal_to_the_threshold_preempts_nobody(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1, priority_scheduling_preemption_threshold=10)
    low = make_generation(priority=0, output=50)
    engine.submit(0.0, [low])
    high = make_generation(priority=10, output=5)
    engine.submit(20.5, [high])
    engine.advance(30.0)
    assert (low.state, high.state) == (State.RUNNING, State.WAITING)
    assert engine.totals.preemptions == 0


def test_a_difference_above_the_threshold_preempts_and_recomputes_what_was_decoded(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1, priority_scheduling_preemption_threshold=10)
    low = make_generation(100, 30, priority=0)
    engine.submit(0.0, [low])
    high = make_generation(100, 5, priority=11)
    engine.submit(20.5, [high])
    engine.advance(1000.0)
    # Twelve tokens of the low one exist at 21; the high one takes 10 + 4; then 12 tokens are prefilled
    # again (the prompt is still in the tree), which samples the next, and 17 steps remain.
    assert high.finished_at == 35.0
    assert low.finished_at == 62.0
    assert low.retractions == 1
    assert low.made == 30
    assert engine.totals.preemptions == 1
    assert engine.totals.prefill_tokens == 100 + 100 + 12


def test_the_lowest_priority_and_among_equals_the_newest_is_preempted(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=3)
    running = [make_generation(priority=priority, output=200) for priority in (5, 0, 0)]
    for at, generation in enumerate(running):
        engine.submit(20.0 * at, [generation])
    engine.submit(100.0, [make_generation(priority=40, output=100)])
    engine.advance(150.0)
    assert [generation.state for generation in running] == [State.RUNNING, State.RUNNING, State.WAITING]


def test_a_preempted_request_queues_behind_its_equals(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1)
    victim = make_generation(priority=0, output=50)
    equal = make_generation(priority=0, output=5)
    engine.submit(0.0, [victim, equal])
    engine.submit(20.0, [make_generation(priority=99, output=5)])
    assert finish_order(engine)[1:] == [equal.rid, victim.rid]


def test_preemption_can_be_switched_off(make_engine: MakeEngine, make_generation: MakeGeneration) -> None:
    engine = make_engine(max_running_requests=1, disable_priority_preemption=True)
    low = make_generation(priority=0, output=50)
    engine.submit(0.0, [low])
    engine.submit(20.0, [make_generation(priority=1000, output=5)])
    assert finish_order(engine)[0] == low.rid


def test_lack_of_kv_preempts_nobody_however_high_the_priority(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=8, max_total_num_tokens=1000)
    low = make_generation(700, 100, priority=0)
    engine.submit(0.0, [low])
    high = make_generation(600, 10, priority=1000)
    small = make_generation(20, 10, priority=1)
    engine.submit(20.0, [high, small])
    engine.advance(60.0)
    # The small one would fit, but the first that lacks KV ends the admission loop.
    assert (low.state, high.state, small.state) == (State.RUNNING, State.WAITING, State.WAITING)
    engine.advance(1000.0)
    assert low.finished_at == 109.0
    assert engine.totals.preemptions == 0
    assert high.admitted_at == 109.0


def test_over_the_bound_of_the_queue_the_worst_is_turned_away(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1, max_queued_requests=1)
    engine.submit(0.0, [make_generation(priority=0)])
    low, high, lower = (make_generation(priority=priority) for priority in (1, 2, 0))
    engine.submit(1.0, [low])
    engine.submit(2.0, [high])
    engine.submit(3.0, [lower])
    assert (low.ending, low.message) == (
        Ending.REFUSED,
        "The request is aborted by a higher priority request.",
    )
    assert (lower.ending, lower.message) == (Ending.REFUSED, "The request queue is full.")
    assert high.ending is None
