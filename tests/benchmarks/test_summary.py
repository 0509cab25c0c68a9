"""Figures and targets from measurements."""

import pytest
from heddle_cli.bench.arms import ArmName
from heddle_cli.bench.gateway_run import Measurement
from heddle_cli.bench.gateway_state import GatewayState
from heddle_cli.bench.loadgen_binary import LoadFigures
from heddle_cli.bench.scenarios import ScenarioName
from heddle_cli.bench.summary import FIGURES, Spread, Summary, Target, summarise

NOTHING_LOST = GatewayState(steps_done=1, history_written=1, history_lost=0)


def measurement(
    number: int,
    arm: ArmName,
    scenario: ScenarioName,
    *,
    rate: float = 100.0,
    p50: float = 1.0,
    cpu_s: float = 0.5,
) -> Measurement:
    load = LoadFigures(
        requests=10,
        requests_per_s=rate,
        chunks_per_s=rate,
        p50_ms=p50,
        p90_ms=p50,
        p99_ms=p50,
        max_ms=p50,
        first_byte_p50_ms=p50,
        first_byte_p99_ms=p50,
        whole_requests=250,
        whole_chunks=2000,
        conversations=3,
        reconnects=0,
    )
    return Measurement(number, scenario, arm, load, cpu_s)


def rounds_of(
    rates: dict[ArmName, list[float]], p50s: dict[ArmName, list[float]], *, lost: int = 0
) -> Summary:
    """A run in which requests/s and the p50 at one connection are as given, all else equal."""
    measurements = [
        measurement(
            number,
            arm,
            scenario,
            rate=rate if scenario is ScenarioName.REQUESTS else 100.0,
            p50=p50s[arm][number] if scenario is ScenarioName.ALONE else 1.0,
        )
        for arm, values in rates.items()
        for number, rate in enumerate(values)
        for scenario in ScenarioName
    ]
    return summarise(measurements, GatewayState(1, 1, lost))


def targets(summary: Summary) -> dict[str, Target]:
    return {target.text.split()[0]: target for target in summary.targets}


def test_a_ratio_is_taken_within_each_round_and_not_between_medians() -> None:
    # The machine was four times as fast in the second round; ours was at three quarters of the peer in both.
    rates = {
        ArmName.DIRECT: [1000.0, 4000.0, 1000.0],
        ArmName.HEDDLE: [75.0, 300.0, 90.0],
        ArmName.PEER: [100.0, 400.0, 300.0],
    }
    p50s = {arm: [1.0, 1.0, 1.0] for arm in rates}
    summary = rounds_of(rates, p50s)
    assert summary.heddle_over["requests_per_s"][ArmName.PEER] == Spread(0.75, 0.3, 0.75)
    assert summary.figures["requests_per_s"][ArmName.PEER] == Spread(300.0, 100.0, 400.0)


def test_the_added_latency_is_a_difference_to_direct_in_the_same_round() -> None:
    rates = {arm: [1.0, 1.0, 1.0] for arm in ArmName}
    p50s = {ArmName.DIRECT: [0.1, 0.2, 0.9], ArmName.HEDDLE: [0.5, 0.5, 1.0], ArmName.PEER: [1.1, 1.2, 1.9]}
    added = rounds_of(rates, p50s).added_p50_ms
    assert added[ArmName.HEDDLE].median == pytest.approx(0.3)
    assert added[ArmName.PEER].median == pytest.approx(1.0)


@pytest.mark.parametrize(("ours", "met"), [(99.9, False), (100.0, True), (150.0, True)])
def test_fewer_requests_than_the_peer_miss_the_target(ours: float, met: bool) -> None:
    rates = {ArmName.DIRECT: [500.0], ArmName.HEDDLE: [ours], ArmName.PEER: [100.0]}
    assert targets(rounds_of(rates, {arm: [1.0] for arm in rates}))["at"].met is met


@pytest.mark.parametrize(("ours", "met"), [(0.61, True), (0.7, False)])
def test_more_than_half_a_millisecond_over_direct_misses_the_target(ours: float, met: bool) -> None:
    rates = {ArmName.DIRECT: [500.0], ArmName.HEDDLE: [100.0]}
    found = targets(rounds_of(rates, {ArmName.DIRECT: [0.15], ArmName.HEDDLE: [ours]}))
    assert found["adds"].met is met
    assert "at" not in found


def test_a_lost_history_record_misses_a_target() -> None:
    rates = {ArmName.DIRECT: [500.0], ArmName.HEDDLE: [100.0]}
    p50s = {arm: [1.0] for arm in rates}
    assert targets(rounds_of(rates, p50s))["no"].met
    assert not targets(rounds_of(rates, p50s, lost=1))["no"].met


def test_cpu_time_is_per_thousand_of_the_whole_run_and_never_given_for_the_engine() -> None:
    measurements = [
        measurement(0, arm, scenario, cpu_s=0.5)
        for arm in (ArmName.DIRECT, ArmName.HEDDLE)
        for scenario in ScenarioName
    ]
    figures = summarise(measurements, NOTHING_LOST).figures
    assert figures["cpu_s_per_1k_requests"] == {ArmName.HEDDLE: Spread(2.0, 2.0, 2.0)}
    assert figures["paced_cpu_ms_per_1k_chunks"] == {ArmName.HEDDLE: Spread(250.0, 250.0, 250.0)}


def test_every_scenario_is_read_by_a_figure() -> None:
    assert {figure.scenario for figure in FIGURES} == set(ScenarioName)
