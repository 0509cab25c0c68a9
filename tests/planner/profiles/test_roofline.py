"""The roofline generator: its arithmetic on known numbers, and that the packaged files are what it writes."""

from pathlib import Path

import pytest
from heddle_contracts.worker_profile import DegreeProfile
from heddle_planner.profiles import load_profile
from heddle_planner.profiles.roofline import GPUS, QWEN3, Gpu, ModelShape, packaged_name, profile, write_all


def full(model: ModelShape, gpu: Gpu) -> dict[int, DegreeProfile]:
    degrees = profile(model, gpu).degrees
    return {degree: found for degree, found in degrees.items() if isinstance(found, DegreeProfile)}


def test_the_packaged_profiles_are_what_the_generator_writes(tmp_path: Path) -> None:
    written = write_all(tmp_path)
    assert len(written) == len(QWEN3) * len(GPUS)
    for path in written:
        assert load_profile(path.stem) == load_profile(str(path)), (
            f"{path.name} is stale; run python -m heddle_planner.profiles.roofline on the packaged folder"
        )


@pytest.mark.parametrize(("model", "billions"), list(zip(QWEN3, (8.19, 14.77, 32.76), strict=True)))
def test_parameters_counted_from_the_config_are_the_published_ones(
    model: ModelShape, billions: float
) -> None:
    assert model.stored_parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_kv_of_a_token_of_qwen3_8b_is_144_kib() -> None:
    assert QWEN3[0].kv_bytes_per_token == 144 * 1024


@pytest.mark.parametrize("model", QWEN3)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_higher_degree_is_faster_for_one_and_less_efficient_for_each_gpu(
    model: ModelShape, gpu: Gpu
) -> None:
    degrees = full(model, gpu)
    for low, high in ((1, 2), (2, 4), (4, 8)):
        ratio = degrees[low].step_seconds[0] / degrees[high].step_seconds[0]
        assert 1 < ratio < 2
        assert degrees[high].prefill_tokens_per_second < 2 * degrees[low].prefill_tokens_per_second
        # Weights take a smaller share of the memory.
        assert degrees[high].kv_tokens > 2 * degrees[low].kv_tokens


def test_one_step_of_qwen3_8b_reads_its_weights_once() -> None:
    model, gpu = QWEN3[0], GPUS[0]
    step = full(model, gpu)[1].step_seconds[0]
    at_full_bandwidth = 2 * model.parameters / gpu.bandwidth
    assert at_full_bandwidth < step < 2 * at_full_bandwidth


def test_every_number_has_a_source() -> None:
    for model in QWEN3:
        for gpu in GPUS:
            made = profile(model, gpu)
            assert made.made_by == "roofline"
            assert {"model", "memory", "bandwidth", "flops", "link", "network", "bandwidth_share"} <= set(
                made.sources
            )
            assert all(made.sources.values())
            assert packaged_name(model, gpu).startswith(model.name.lower())
