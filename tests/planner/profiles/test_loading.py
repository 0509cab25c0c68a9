"""Profiles by name, file and text, and what is said of those that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from heddle_contracts.worker_profile import DegreeFactors, DegreeProfile
from heddle_planner.profiles import ProfileError, load_profile, packaged_names

STEPS = {"batches": [1, 8], "step_seconds": [0.01, 0.02], "slots": 64}


def test_the_short_form_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    text = '{"degrees": {"1": {"T": 0.01, "F": [1.0, 1.02]}}}'
    from_text = load_profile(text)
    path = tmp_path / "profile.json"
    path.write_text(text)
    assert load_profile(str(path)) == from_text
    assert from_text.degrees == {1: DegreeFactors(T=0.01, F=(1.0, 1.02))}
    assert not from_text.has_steps


def test_every_packaged_profile_loads_by_name_and_survives_a_round_trip() -> None:
    assert len(packaged_names()) == 6
    for name in packaged_names():
        profile = load_profile(name)
        assert profile.has_steps
        assert sorted(profile.degrees) == [1, 2, 4, 8]
        assert load_profile(profile.model_dump_json()) == profile


def test_an_unknown_name_lists_the_packaged_ones() -> None:
    with pytest.raises(ProfileError, match=r"gpt-9: no such file.*packaged are .*qwen3-8b-h100"):
        load_profile("gpt-9")


@pytest.mark.parametrize(
    ("degree", "says"),
    [
        ({"T": 0.0, "F": [1.0]}, "field degrees.1.T: Input should be greater than 0"),
        ({"T": 0.1, "F": []}, "field degrees.1.F: "),
        ({"T": 0.1, "F": [1.0, 1.2, 1.1]}, r"field degrees.1: F\[2\] = 1.1 falls below F\[1\] = 1.2"),
        ({"T": 0.1}, "field degrees.1.F: Field required"),
        ({**STEPS, "slots": 0}, "field degrees.1.slots: "),
        ({**STEPS, "batches": [2, 8]}, r"field degrees.1: batches must rise from 1, got \[2, 8\]"),
        ({**STEPS, "step_seconds": [0.01]}, "step_seconds has 1 values for 2 batches"),
        ({**STEPS, "kv_tokns": 3}, "field degrees.1.kv_tokns: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_field_is_named_with_its_path(degree: dict[str, Any], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        load_profile(json.dumps({"degrees": {"1": degree}}))


@pytest.mark.parametrize("text", ["{", '{"degrees": {}}', '{"degrees": {"0": {"T": 1, "F": [1]}}}', "{}"])
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match="--profile: "):
        load_profile(text)


def test_defaults_of_the_full_form_mean_not_known() -> None:
    profile = load_profile(json.dumps({"degrees": {"2": STEPS}}))
    degree = profile.degrees[2]
    assert isinstance(degree, DegreeProfile)
    assert degree.kv_tokens == 0
    assert degree.prefill_tokens_per_second == 0
