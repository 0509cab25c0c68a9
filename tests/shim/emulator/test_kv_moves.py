"""KV that leaves an engine or arrives at one: what is set aside, what is refused, what runs undisturbed."""

import random

import pytest
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.generation import Ending, Generation
from heddle_shim.emulator.kv_moves import KvMoves
from heddle_shim.emulator.tokens import count, pack

from .conftest import MakeEngine, MakeGeneration


def run_to_end(engine: Engine, *generations: Generation) -> None:
    engine.submit(engine.now, list(generations))
    while (due := engine.next_event_time()) is not None:
        engine.advance(due)
    assert {generation.ending for generation in generations} == {Ending.PLANNED}


def test_an_adopted_prefix_is_found_by_the_next_step(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    moves = KvMoves(engine)
    history = list(range(1, 301))

    assert moves.promise(0.0, 256)
    assert engine.pool.free == 744
    assert moves.adopt(0.0, 256, pack(history[:256])) == 256
    assert (engine.pool.promised, engine.pool.tree.size) == (0, 256)

    step = make_generation(history)
    run_to_end(engine, step)
    assert step.cached_tokens == 256
    assert engine.audit() == []


def test_room_is_promised_only_beside_what_running_requests_need(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    moves = KvMoves(engine)
    running = make_generation(500, 400)
    engine.submit(0.0, [running])
    engine.advance(50.0)

    assert not moves.promise(50.0, 101), "the running request could not have grown"
    assert moves.promise(50.0, 100)
    while (due := engine.next_event_time()) is not None:
        engine.advance(due)
    assert running.ending is Ending.PLANNED
    assert running.retractions == 0
    assert engine.audit() == []


def test_a_request_that_runs_dry_beside_arriving_kv_goes_on_after_it(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=5000, chunked_prefill_size=5000)
    moves = KvMoves(engine)
    assert moves.promise(0.0, 400)
    # Admission sets at most 4,096 output tokens aside, so this one gets in although it needs all there is.
    running = make_generation(10, 4900)
    engine.submit(0.0, [running])
    while (due := engine.next_event_time()) is not None:
        engine.advance(due)
    assert running.ending is None
    assert (len(engine.waiting), running.retractions) == (1, 1)

    moves.adopt(engine.now, 400, b"")
    while (due := engine.next_event_time()) is not None:
        engine.advance(due)
    assert running.ending is Ending.PLANNED
    assert engine.audit() == []


def test_arriving_kv_evicts_what_nobody_uses(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    idle = make_generation(800, 10)
    run_to_end(engine, idle)
    assert engine.pool.free < 500

    assert KvMoves(engine).promise(engine.now, 500)

    assert engine.pool.evicted > 0
    assert engine.audit() == []


def test_a_held_prefix_is_not_evicted_and_is_refused_where_running_requests_need_it(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    moves = KvMoves(engine)
    history = list(range(1, 501))
    run_to_end(engine, make_generation(history, 1))
    hold = moves.hold(engine.now, pack(history))
    assert hold is not None
    assert hold.shared == 500

    other = make_generation(400, 50)
    run_to_end(engine, other)
    assert engine.pool.tree.match(pack(history))[0] == 500
    moves.let_go(engine.now, hold)

    greedy = make_generation(450, 500)
    engine.submit(engine.now, [greedy])
    engine.advance(engine.now + 50)
    assert moves.hold(engine.now, pack(history)) is None
    assert engine.audit() == []


def test_more_than_was_promised_is_not_taken(make_engine: MakeEngine) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    moves = KvMoves(engine)
    assert moves.promise(0.0, 10)

    with pytest.raises(ValueError, match="11 tokens"):
        moves.adopt(0.0, 10, pack(range(11)))


def test_kv_that_left_is_as_old_as_its_last_step(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    """As in SGLang, where nobody who reads pages for another worker is a request."""
    engine = make_engine(max_total_num_tokens=1000)
    moves = KvMoves(engine)
    older, newer = list(range(1, 301)), list(range(1001, 1301))
    for history in (older, newer):
        run_to_end(engine, make_generation(history, 1))
    hold = moves.hold(engine.now, pack(older))
    assert hold is not None
    moves.let_go(engine.now, hold)

    assert moves.promise(engine.now, 500)

    assert engine.pool.tree.match(pack(older))[0] == 0
    assert engine.pool.tree.match(pack(newer))[0] == 300


@pytest.mark.parametrize("seed", range(15))
def test_moves_among_random_requests_never_break_the_pool(
    seed: int, make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    draw = random.Random(seed)
    engine = make_engine(
        max_total_num_tokens=draw.choice([600, 2000]), page_size=draw.choice([1, 4]), max_running_requests=4
    )
    moves = KvMoves(engine)
    histories: list[bytes] = []
    holds, promised = [], []
    now = 0.0
    for _ in range(120):
        now += draw.choice([0.0, 0.5, 3.0, 11.0, 40.0])
        match draw.randrange(6):
            case 0 | 1:
                generation = make_generation(draw.randrange(1, 200), draw.randrange(1, 120))
                engine.submit(now, [generation])
                histories.append(generation.prompt)
            case 2 if histories:
                if (hold := moves.hold(now, draw.choice(histories))) is not None:
                    holds.append(hold)
            case 3:
                size = draw.randrange(1, 60) * 4
                if moves.promise(now, size):
                    promised.append(size)
            case 4 if promised:
                size = promised.pop()
                tokens = pack(draw.choices(range(1, 9), k=size))
                moves.adopt(now, size, draw.choice([b"", tokens]))
            case _ if holds:
                moves.let_go(now, holds.pop())
        assert engine.audit() == []
    for hold in holds:
        moves.let_go(now, hold)
    for size in promised:
        moves.adopt(now, size, b"")
    while (due := engine.next_event_time()) is not None:
        engine.advance(due)
        assert engine.audit() == []
    assert not engine.live()
    assert engine.pool.used == 0
    assert all(count(history) for history in histories)
