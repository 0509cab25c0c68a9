"""The KV pool: eviction, retraction, and the accounting under random load."""

from collections.abc import Callable

from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import EngineConfig, PauseMode
from heddle_shim.emulator.generation import Ending, Generation, State
from heddle_shim.emulator.timing import StepCosts, TimingProfile
from heddle_shim.emulator.tokens import pack
from hypothesis import given, settings
from hypothesis import strategies as st

MakeEngine = Callable[..., Engine]
MakeGeneration = Callable[..., Generation]


def test_the_oldest_finished_prompt_makes_room_for_a_new_one(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=1000)
    first = make_generation(list(range(400)), 2)
    second = make_generation(list(range(1000, 1400)), 2)
    engine.submit(0.0, [first])
    engine.submit(50.0, [second])
    engine.submit(100.0, [make_generation(list(range(2000, 2400)), 2)])
    engine.advance(150.0)
    assert engine.pool.tree.match(pack(range(400)))[0] == 0
    assert engine.pool.tree.match(pack(range(1000, 1400)))[0] == 400
    assert engine.pool.evicted > 0


def test_when_decode_outgrows_the_pool_the_shortest_output_goes_back(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=830)
    # Admission believes in short answers (the ratio), so both enter although they cannot both end.
    old = make_generation(200, 300)
    engine.submit(0.0, [old])
    new = make_generation(200, 200)
    engine.submit(100.0, [new])
    engine.advance(285.0)
    assert (old.retractions, new.retractions) == (0, 1)
    assert new.state is State.WAITING
    engine.advance(5000.0)
    assert (old.made, new.made) == (300, 200)
    assert engine.totals.retractions == 1
    assert {old.ending, new.ending} == {Ending.PLANNED}


def test_by_priority_the_lowest_goes_back_whatever_its_length(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=830, retraction_policy="priority")
    old = make_generation(200, 300, priority=0)
    engine.submit(0.0, [old])
    new = make_generation(200, 200, priority=5)
    engine.submit(100.0, [new])
    engine.advance(285.0)
    assert (old.retractions, new.retractions) == (1, 0)


def test_siblings_share_the_kv_of_their_prompt(
    make_engine: MakeEngine, make_generation: MakeGeneration
) -> None:
    engine = make_engine(max_total_num_tokens=2000)
    prompt = list(range(1000))
    engine.submit(0.0, [make_generation(prompt, 0)])
    siblings = [make_generation(prompt, 20) for _ in range(8)]
    engine.submit(20.0, siblings)
    engine.advance(35.0)
    assert engine.running_count() == 8
    assert engine.used_tokens() < 1000 + 8 * 20


STEP = st.tuples(
    st.sampled_from(["submit", "submit", "submit", "abort", "pause", "resume"]),
    st.floats(0.0, 3.0),
    st.integers(0, 2**16),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(STEP, max_size=60),
    st.integers(1, 5),
    st.sampled_from([1, 4, 16]),
    st.integers(200, 900),
    st.booleans(),
    st.sampled_from(["length", "priority"]),
)
def test_under_random_load_the_books_balance_and_every_request_ends_exactly_once(
    steps: list[tuple[str, float, int]],
    slots: int,
    page: int,
    pool: int,
    priorities: bool,
    retraction: str,
) -> None:
    def build() -> Engine:
        config = EngineConfig(
            max_running_requests=slots,
            max_total_num_tokens=pool,
            page_size=page,
            chunked_prefill_size=64,
            enable_priority_scheduling=priorities,
            retraction_policy="priority" if retraction == "priority" else "length",
        )
        return Engine(config, StepCosts(TimingProfile(), 1))

    def play(engine: Engine, watch: bool) -> list[tuple[str, float | None, int, str | None]]:
        """Plays the steps; with ``watch`` it also looks at every event in between."""
        now = 0.0
        submitted: list[Generation] = []
        ended: list[Generation] = []

        def reach(target: float) -> None:
            while watch and (due := engine.next_event_time()) is not None and due < target:
                engine.advance(due)
                assert engine.audit() == []

        for kind, pause, number in steps:
            now += pause
            reach(now)
            if kind == "submit":
                shared = number % 3 * 40
                own = [10_000 + number] * (1 + number % 90)
                generation = Generation(
                    f"r{len(submitted)}",
                    pack([*range(shared), *own]),
                    pack([20_000 + number] * (number % 60)),
                    number % 60 + number % 7,
                    number % 50,
                )
                submitted.append(generation)
                engine.submit(now, [generation])
            elif kind == "abort" and submitted:
                engine.abort(now, submitted[number % len(submitted)])
            elif kind == "pause":
                engine.pause(now, list(PauseMode)[number % 3])
            else:
                engine.resume(now)
            assert engine.audit() == []
            ended += engine.take_finished()
        engine.resume(now)
        reach(now + 1e5)
        engine.advance(now + 1e5)
        assert engine.audit() == []
        ended += engine.take_finished()
        assert sorted(generation.rid for generation in ended) == sorted(one.rid for one in submitted)
        assert engine.live() == []
        assert engine.used_tokens() == 0
        for generation in submitted:
            if generation.ending is Ending.PLANNED:
                assert generation.made == generation.limit
        return [
            (one.rid, round(one.finished_at or 0.0, 6), one.made, one.ending)
            for one in sorted(submitted, key=lambda one: one.rid)
        ]

    # Whoever looks only at the end finds the same as who looked at every event.
    assert play(build(), watch=True) == play(build(), watch=False)
