"""Fits recover the numbers that samples were made from."""

import pytest
from heddle_planner.profiles.fitting import (
    DecodeMoments,
    FitError,
    StepSample,
    fit_moments,
    fit_steps,
)


def test_the_ladder_recovers_batch_and_context_prices() -> None:
    def sample(batch: int, context: float) -> StepSample:
        return StepSample(batch, context, 0.010 + 0.0002 * batch + 5e-7 * context)

    fit = fit_steps(
        [*(sample(batch, 50.0 * batch) for batch in (1, 4, 16)), sample(4, 8000.0), sample(16, 32000.0)]
    )
    assert fit.batches == (1, 4, 16)
    assert fit.step_seconds == pytest.approx((0.0102, 0.0108, 0.0132))
    assert fit.seconds_per_context_token == pytest.approx(5e-7)


def test_noise_never_makes_company_faster_or_context_negative() -> None:
    fit = fit_steps([StepSample(1, 10, 0.012), StepSample(2, 20, 0.011), StepSample(2, 4000, 0.0105)])
    assert fit.seconds_per_context_token == 0.0
    assert fit.step_seconds[1] >= fit.step_seconds[0]


def test_a_ladder_without_its_first_rung_is_refused() -> None:
    with pytest.raises(FitError, match="no sample at batch 1"):
        fit_steps([StepSample(2, 10, 0.01)])


def moments(steps: list[tuple[int, float]], tokens_a_step: float = 1.0) -> DecodeMoments:
    sums = DecodeMoments(0, 0, 0, 0, 0, 0)
    for batch, micros in steps:
        sums += DecodeMoments(1, batch, micros, batch * batch, batch * micros, batch * tokens_a_step)
    return sums


def test_decode_moments_recover_a_line() -> None:
    fit = fit_moments(moments([(batch, 8000 + 150 * batch) for batch in range(1, 33)] * 10), slots=64)
    assert fit.batches == (1, 64)
    assert fit.step_seconds == pytest.approx((0.00815, 0.0176))


def test_speculative_decoding_makes_a_token_cheaper_than_a_step() -> None:
    steps = [(batch, 8000 + 150.0 * batch) for batch in range(1, 33)] * 10
    plain, drafted = fit_moments(moments(steps), 64), fit_moments(moments(steps, 2.5), 64)
    assert drafted.step_seconds == pytest.approx([seconds / 2.5 for seconds in plain.step_seconds])


def test_a_line_that_falls_or_starts_below_zero_is_held_at_what_can_be() -> None:
    falling = fit_moments(moments([(1, 9000), (32, 8000)] * 100), slots=32)
    assert falling.step_seconds[0] == falling.step_seconds[1] == pytest.approx(0.0085)
    steep = fit_moments(moments([(1, 100), (32, 9000)] * 100), slots=32)
    assert 0 < steep.step_seconds[0] < steep.step_seconds[1]


@pytest.mark.parametrize(
    ("steps", "says"),
    [([(4, 8000.0)] * 500, "a batch of 4.0"), ([(1, 8000.0), (2, 8100.0)], "cover 2 decode steps")],
)
def test_moments_that_tell_nothing_are_refused(steps: list[tuple[int, float]], says: str) -> None:
    with pytest.raises(FitError, match=says):
        fit_moments(moments(steps), slots=8)
