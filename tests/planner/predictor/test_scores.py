"""Scores against their definitions, and calibration against laws that are known."""

import numpy as np
import pytest
from heddle_planner.predictor.calibration import MeanCalibration, held_out_quantiles
from heddle_planner.predictor.censoring import above, residual_spread, starting_targets, variance_above
from heddle_planner.predictor.protocol import QUANTILES, Prediction, lognormal
from heddle_planner.predictor.scores import (
    calibration_slope,
    concordance,
    pearson,
    recall_of_longest,
    reliability,
    score,
    spearman,
)
from numpy.typing import NDArray


def by_pairs(truth: NDArray[np.float64], said: NDArray[np.float64]) -> float:
    right = comparable = 0.0
    for i in range(len(truth)):
        for j in range(i):
            if truth[i] != truth[j]:
                comparable += 1
                agree = (truth[i] - truth[j]) * (said[i] - said[j])
                right += 0.5 if said[i] == said[j] else float(agree > 0)
    return right / comparable


@pytest.mark.parametrize("seed", range(20))
def test_concordance_is_the_share_of_pairs_in_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 6, 30).astype(np.float64)
    said = truth * draw.integers(0, 2) + draw.integers(0, 5, 30)
    assert concordance(truth, said) == pytest.approx(by_pairs(truth, said))


def test_recall_counts_a_tie_by_its_chance() -> None:
    truth = np.arange(10.0)
    assert recall_of_longest(truth, truth, 0.2) == 1.0
    assert recall_of_longest(truth, -truth, 0.2) == 0.0
    assert recall_of_longest(truth, np.ones(10), 0.2) == pytest.approx(0.2)
    assert recall_of_longest(truth, np.array([9.0] + [1.0] * 9), 0.2) == pytest.approx(1 / 9)


def test_a_constant_has_no_correlation_and_no_slope() -> None:
    truth = np.arange(10.0)
    assert pearson(truth, np.ones(10)) == 0.0
    assert concordance(truth, np.ones(10)) == 0.5
    assert concordance(np.ones(10), truth) is None
    assert calibration_slope(truth, np.ones(10)) is None
    assert calibration_slope(2 * truth + 1, truth) == pytest.approx(2)
    assert spearman(truth, truth**3) == pytest.approx(1)


def test_ranks_are_compared_within_folds_only() -> None:
    # Each fold is in perfect order; the second's model has another level.
    truth = np.concatenate([np.arange(10.0), np.arange(10.0)])
    said = lognormal(np.concatenate([np.arange(10.0) + 1, 1_000 + np.arange(10.0)]), np.full(20, 0.1))
    folds = np.repeat([0, 1], 10)
    assert score(truth, said, folds)["concordance"] == 1.0
    assert score(truth, said, np.zeros(20, dtype=np.intp))["concordance"] != 1.0


def test_scores_of_nothing_are_none() -> None:
    empty = Prediction(np.empty(0), np.empty(0), np.empty((0, len(QUANTILES))))
    found = score(np.empty(0), empty, np.empty(0, dtype=np.intp))
    assert found["rows"] == 0
    assert {value for name, value in found.items() if name != "rows"} == {None}


def test_reliability_bins_hold_every_row_once() -> None:
    said = np.random.default_rng(0).random(103)
    assert sum(rows for _, _, rows in reliability(said, said)) == 103


@pytest.mark.parametrize(("slope", "level"), [(1.0, 0.0), (0.6, 3.0), (1.5, -4.0)])
def test_a_mean_is_calibrated_whatever_its_scale(slope: float, level: float) -> None:
    draw = np.random.default_rng(0)
    logs = 8 + draw.standard_normal(20_000)
    lengths = np.exp(level + slope * logs + 0.5 * draw.standard_normal(20_000) - 0.125)
    calibration = MeanCalibration.fit(logs, lengths, np.ones(20_000))
    said = calibration.apply(logs)
    assert said.mean() == pytest.approx(lengths.mean(), rel=0.02)
    assert calibration_slope(lengths, said) == pytest.approx(1, abs=0.05)
    assert MeanCalibration.from_json(calibration.as_json()) == calibration


def test_a_calibration_takes_what_tells_nothing() -> None:
    same = MeanCalibration.fit(np.full(50, 5.0), np.linspace(1, 99, 50), np.ones(50))
    assert same.apply(np.array([5.0]))[0] == pytest.approx(50, rel=0.05)
    assert np.isfinite(same.apply(np.array([-1e9, 1e9]))).all()


def test_a_thinned_moment_counts_for_those_left_out() -> None:
    draw = np.random.default_rng(1)
    logs = 8 + draw.standard_normal(20_000)
    late = logs > 8.5
    lengths = np.exp(logs) * np.where(late, 0.2, 1.0)
    kept = ~late | (draw.random(20_000) < 0.1)
    weight = np.where(late, 10.0, 1.0)[kept]
    thin = MeanCalibration.fit(logs[kept], lengths[kept], weight)
    careless = MeanCalibration.fit(logs[kept], lengths[kept], np.ones(int(kept.sum())))
    assert thin.apply(logs).mean() == pytest.approx(lengths.mean(), rel=0.05)
    assert careless.apply(logs).mean() > 1.2 * lengths.mean()


def test_conformal_quantiles_cover_what_they_say_also_under_censoring() -> None:
    draw = np.random.default_rng(0)
    truth = draw.standard_normal(20_000) * 2 + 1
    np.testing.assert_allclose(held_out_quantiles(truth, QUANTILES), np.quantile(truth, QUANTILES), atol=1e-9)
    bound = draw.standard_normal(20_000) * 2 + 3
    finished = truth <= bound
    found = held_out_quantiles(np.minimum(truth, bound), QUANTILES, finished)
    np.testing.assert_allclose(found, np.quantile(truth, QUANTILES), atol=0.15)


def test_what_lies_above_a_bound_is_what_a_sample_shows() -> None:
    sample = 2 + 1.5 * np.random.default_rng(0).standard_normal(1_000_000)
    for bound in (-3.0, 2.0, 5.0):
        kept = sample[sample > bound]
        assert above(np.array([bound]), np.array([2.0]), 1.5)[0] == pytest.approx(kept.mean(), abs=0.02)
        assert variance_above(np.array([bound]), np.array([2.0]), 1.5)[0] == pytest.approx(
            kept.var(), abs=0.03
        )
    assert np.isfinite(above(np.array([1e6]), np.array([2.0]), 1.5)).all()


def test_censored_targets_are_filled_in_where_they_belong() -> None:
    draw = np.random.default_rng(0)
    truth = 8 + draw.standard_normal(20_000)
    bound = 8 + draw.standard_normal(20_000)
    finished = truth <= bound
    seen = np.minimum(truth, bound)
    filled = starting_targets(seen, finished)
    assert (filled >= seen).all()
    assert filled.mean() == pytest.approx(8, abs=0.05)
    assert residual_spread(seen, np.full(20_000, 8.0), finished) == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(starting_targets(truth, np.ones(20_000, dtype=np.bool_)), truth)
