"""Costs of steps, and the closed form of a run of them."""

import json
from pathlib import Path

import pytest
from heddle_shim.emulator.decode_segment import DecodeSegment
from heddle_shim.emulator.timing import ProfileError, StepCosts, TimingProfile
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.floats(0, 1e6),
    st.floats(1e-4, 10),
    st.floats(0, 1e-2),
    st.integers(1, 100_000),
    st.floats(0, 1),
)
def test_steps_by_a_time_are_those_that_are_complete_then(
    start: float, first: float, growth: float, steps: int, share: float
) -> None:
    segment = DecodeSegment(start, first, growth, steps)
    now = start + segment.duration(steps) * share
    done = segment.steps_by(now)
    assert 0 <= done <= steps
    assert done == 0 or segment.time_after(done) <= now
    assert done == steps or segment.time_after(done + 1) > now


def test_the_closed_form_is_the_sum_of_the_single_steps() -> None:
    costs = StepCosts(TimingProfile(), 2)
    batch, context = 7, 40_000
    growth = batch * costs.decode_context
    segment = DecodeSegment(5.0, costs.decode_step(batch, context), growth, 500)
    single = sum(costs.decode_step(batch, context + batch * step) for step in range(500))
    assert segment.time_after(500) == pytest.approx(5.0 + single)


def test_more_gpus_are_faster_but_not_in_proportion() -> None:
    profile = TimingProfile()
    steps = [StepCosts(profile, degree).decode_step(1, 4000) for degree in (1, 2, 4, 8)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] / steps[2] < 4
    prefills = [StepCosts(profile, degree).prefill([(8192, 0)]) for degree in (1, 2, 4)]
    assert prefills[0] / prefills[2] < 4
    assert StepCosts(profile, 4).kv_capacity > 4 * StepCosts(profile, 1).kv_capacity


def test_company_and_context_make_a_step_slower() -> None:
    costs = StepCosts(TimingProfile(), 1)
    alone = costs.decode_step(1, 2000)
    assert costs.decode_step(32, 32 * 2000) > 1.3 * alone
    assert costs.decode_step(1, 100_000) > 1.5 * alone
    assert costs.prefill([(1000, 50_000)]) > costs.prefill([(1000, 0)])


def test_a_profile_file_overrides_single_fields(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"decode_fixed_s": 0.5}))
    profile = TimingProfile.from_file(path)
    assert profile.decode_fixed_s == 0.5
    assert profile.scaling == TimingProfile().scaling


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"decode_fixd_s": 1}', "unknown field decode_fixd_s"),
        ('{"decode_fixed_s": -1}', "decode_fixed_s: must be a number of at least 0"),
        ('{"scaling": "big"}', "scaling: must be a number"),
        ("[]", "one JSON object"),
        ("{", "profile.json"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        TimingProfile.from_file(path)
