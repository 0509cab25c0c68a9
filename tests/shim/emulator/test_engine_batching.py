"""The scheduler in virtual time: what a batch takes, to the second."""

from collections.abc import Callable

import pytest
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import PauseMode
from heddle_shim.emulator.generation import Ending, Generation, State
from heddle_shim.emulator.timing import StepCosts, TimingProfile

MakeEngine = Callable[..., Engine]
MakeGeneration = Callable[..., Generation]


def test_a_batch_takes_one_prefill_and_one_step_for_each_further_token(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    batch = [make_generation(output=10) for _ in range(8)]
    engine.submit(0.0, batch)
    engine.advance(100.0)
    assert [generation.finished_at for generation in batch] == [19.0] * 8
    assert [generation.first_token_at for generation in batch] == [10.0] * 8
    assert engine.take_finished() == batch
    assert engine.take_finished() == []


def test_a_mixed_batch_costs_what_the_sum_of_its_single_steps_costs(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    profile = TimingProfile()
    costs = StepCosts(profile, 2)
    engine = make_engine(profile, 2)
    short, long = make_generation(3000, 40), make_generation(1000, 100)
    engine.submit(0.0, [short, long])
    engine.advance(1e6)
    now = costs.prefill([(3000, 0), (1000, 0)])
    context = {3000: 39, 1000: 99}
    for step in range(99):
        alive = [prompt for prompt, steps in context.items() if step < steps]
        now += costs.decode_step(len(alive), sum(alive) + step * len(alive))
        if step == 38:
            assert short.finished_at == pytest.approx(now)
    assert long.finished_at == pytest.approx(now)


def test_decode_waits_while_a_newcomer_is_prefilled(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    first, second = make_generation(output=10), make_generation(output=5)
    engine.submit(0.0, [first])
    engine.submit(12.5, [second])
    engine.advance(100.0)
    # The step in progress ends at 13; prefill runs to 23; then both decode.
    assert second.admitted_at == 13.0
    assert second.first_token_at == 23.0
    assert second.finished_at == 27.0
    assert first.finished_at == 29.0


def test_a_newcomer_at_the_very_end_of_a_step_is_seen_then(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    engine.submit(0.0, [make_generation(output=10)])
    second = make_generation(output=1)
    engine.submit(12.0, [second])
    engine.advance(100.0)
    assert (second.admitted_at, second.finished_at) == (12.0, 22.0)


def test_a_long_prompt_is_prefilled_in_chunks_and_shares_its_last_one(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(chunked_prefill_size=1000)
    long, short = make_generation(2500, 1), make_generation(400, 1)
    engine.submit(0.0, [long, short])
    engine.advance(25.0)
    assert long.computed == 2000
    assert short.state is State.PREFILLING
    engine.advance(100.0)
    assert long.finished_at == 30.0
    assert short.finished_at == 30.0
    assert engine.totals.prefill_tokens == 2900


def test_at_most_as_many_run_as_there_are_slots(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=2)
    batch = [make_generation(output=10) for _ in range(3)]
    engine.submit(0.0, batch)
    engine.advance(15.0)
    assert engine.running_count() == 2
    assert len(engine.waiting) == 1
    engine.advance(100.0)
    assert [generation.finished_at for generation in batch] == [19.0, 19.0, 38.0]


def test_a_prompt_seen_before_is_found_but_for_its_last_token(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    first = make_generation(list(range(50, 150)), 5)
    again = make_generation(list(range(50, 150)), 5)
    engine.submit(0.0, [first])
    engine.submit(100.0, [again])
    engine.advance(200.0)
    assert (first.cached_tokens, again.cached_tokens) == (0, 99)


def test_decoded_tokens_are_found_by_the_next_step_of_the_trajectory(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    first = make_generation(100, 20)
    engine.submit(0.0, [first])
    engine.advance(100.0)
    history = memoryview(first.prompt + first.output).cast("I").tolist()
    following = make_generation([*history, *range(30)], 5)
    engine.submit(100.0, [following])
    engine.advance(200.0)
    # The KV of the last sampled token is never computed.
    assert following.cached_tokens == 119


def test_whole_pages_only_are_reused(make_engine: MakeEngine, make_generation: MakeGeneration) -> None:
    engine = make_engine(page_size=16)
    engine.submit(0.0, [make_generation(list(range(50, 150)), 5)])
    again = make_generation(list(range(50, 150)), 5)
    engine.submit(100.0, [again])
    engine.advance(200.0)
    assert again.cached_tokens == 96


def test_an_aborted_request_ends_with_its_step_and_leaves_its_decoded_kv(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    running = make_generation(100, 50)
    engine.submit(0.0, [running])
    engine.abort(14.5, running)
    engine.advance(100.0)
    assert running.ending is Ending.ABORTED
    assert running.finished_at == 15.0
    assert running.made == 6
    history = memoryview(running.prompt + running.output[: 6 * 4]).cast("I").tolist()
    resumed = make_generation([*history, 7], 5)
    engine.submit(100.0, [resumed])
    engine.advance(200.0)
    assert resumed.cached_tokens == 105


def test_an_aborted_waiting_request_ends_at_once(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1)
    running, waiting = make_generation(), make_generation()
    engine.submit(0.0, [running, waiting])
    engine.abort(3.3, waiting)
    assert engine.take_finished() == [waiting]
    assert (waiting.finished_at, waiting.ending, waiting.made) == (3.3, Ending.ABORTED, 0)


def test_a_request_for_no_tokens_only_fills_the_cache(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    primer = make_generation(list(range(100)), 0)
    engine.submit(0.0, [primer])
    engine.advance(10.0)
    assert (primer.state, primer.made) == (State.FINISHED, 0)
    assert engine.pool.tree.size == 100


def test_tokens_are_seen_as_their_steps_complete(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    generation = make_generation(output=10)
    engine.submit(0.0, [generation])
    seen: list[int] = []
    for now in (9.9, 10.0, 10.9, 11.0, 14.5, 18.0, 19.0):
        engine.advance(now)
        seen.append(engine.made(generation))
    assert seen == [0, 1, 1, 2, 5, 9, 10]


def test_the_next_token_time_is_the_end_of_the_step_in_progress(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    engine.submit(0.0, [make_generation(output=10)])
    assert engine.next_token_time() == 10.0
    engine.advance(13.2)
    assert engine.next_token_time() == 14.0
    assert engine.next_event_time() == 19.0
    engine.advance(19.0)
    assert engine.next_token_time() is None


def test_a_pause_in_place_freezes_and_goes_on(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    generation = make_generation(output=10)
    engine.submit(0.0, [generation])
    engine.pause(12.5, PauseMode.IN_PLACE)
    engine.advance(50.0)
    assert generation.made == 4
    late = make_generation(output=1)
    engine.submit(60.0, [late])
    engine.advance(70.0)
    assert late.state is State.WAITING
    engine.resume(100.0)
    engine.advance(200.0)
    assert late.finished_at == 110.0
    assert generation.finished_at == 116.0


def test_a_pause_that_retracts_recomputes_all_but_the_prompt_and_keeps_the_output(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    generation = make_generation(100, 10)
    engine.submit(0.0, [generation])
    engine.pause(12.5, PauseMode.RETRACT)
    engine.advance(50.0)
    assert (generation.state, generation.made, generation.hold) == (State.WAITING, 4, None)
    engine.resume(100.0)
    engine.advance(200.0)
    # Recomputing samples token 5, then five steps.
    assert generation.finished_at == 115.0
    assert generation.retractions == 1
    assert engine.totals.prefill_tokens == 100 + 4


def test_a_pause_that_aborts_ends_everything(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_running_requests=1)
    both = [make_generation(), make_generation()]
    engine.submit(0.0, both)
    engine.pause(12.5, PauseMode.ABORT)
    engine.advance(13.0)
    assert {generation.ending for generation in both} == {Ending.ABORTED}
    assert engine.live() == []


def test_the_cache_is_flushed_only_when_idle(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine()
    engine.submit(0.0, [make_generation(100, 10)])
    assert not engine.flush_cache(5.0)
    assert engine.flush_cache(50.0)
    assert engine.pool.tree.size == 0


def test_decode_moments_sum_over_steps(make_engine: MakeEngine, make_generation: MakeGeneration) -> None:
    engine = make_engine()
    engine.submit(0.0, [make_generation(output=5), make_generation(output=11)])
    engine.advance(100.0)
    totals = engine.totals
    # Four steps of two, six of one, a second each; prefill's tokens are no decode steps.
    assert totals.decode_steps == 10
    assert totals.decode_batch == 14
    assert totals.decode_s == 10.0
    assert totals.decode_batch_squared == 22
    assert totals.decode_batch_s == 14.0
    assert totals.decode_tokens == 14
    assert totals.output_tokens == 16
    assert totals.decode_moments() == [10, 14, 10e6, 22, 14e6, 14], "times are microseconds, as SGLang's"


def test_a_request_larger_than_the_pool_is_refused(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=100)
    generation = make_generation(95, 10)
    engine.submit(0.0, [generation])
    assert generation.ending is Ending.REFUSED


@pytest.mark.parametrize(
    "config",
    [{"max_running_requests": 0}, {"chunked_prefill_size": 8, "page_size": 16}, {"max_total_num_tokens": 0}],
)
def test_limits_that_would_stall_the_engine_are_refused(
    make_engine: MakeEngine, config: dict[str, int]
) -> None:
    with pytest.raises(ValueError):
        make_engine(**config)
