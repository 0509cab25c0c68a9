"""Trees: what `heddle_core.Forest` says is what LightGBM says."""

import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from heddle_core import Forest
from heddle_planner.predictor.protocol import Floats, PredictorError
from heddle_planner.predictor.trees import Trees

SETTINGS = {"num_iterations": 60, "num_leaves": 16, "min_data_in_leaf": 5, "learning_rate": 0.1}


def rows(count: int, seed: int) -> Floats:
    """Plain, sometimes unknown, whole, constant, huge, and never unknown in training."""
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(count, 6))
    numbers[draw.random(count) < 0.3, 1] = np.nan
    numbers[:, 2] = draw.integers(0, 5, count)
    numbers[:, 3] = 1.0
    numbers[:, 4] *= 1e12
    return np.asarray(numbers, dtype=np.float64)


@pytest.fixture(scope="module")
def grown() -> Trees:
    numbers = rows(3_000, seed=0)
    target = numbers[:, 0] + np.nan_to_num(numbers[:, 1], nan=2.0) * numbers[:, 2] + np.sign(numbers[:, 4])
    return Trees.grow(SETTINGS, numbers, target + 0.3 * numbers[:, 5], np.ones(len(target)))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 33, 1_000])
def test_the_forest_says_what_lightgbm_says(grown: Trees, count: int) -> None:
    numbers = rows(count, seed=1)
    draw = np.random.default_rng(2)
    for odd in (np.nan, np.inf, -np.inf, 0.0, 1e-36):
        numbers[draw.random(numbers.shape) < 0.05] = odd
    said = grown.predict(numbers)
    assert said.shape == (count,)
    if count:
        theirs = lightgbm.Booster(model_str=grown.text).predict(numbers, num_threads=1)
        np.testing.assert_array_equal(said, theirs)
        assert count < 1_000 or np.ptp(said) > 1


def test_columns_out_of_order_in_memory_are_read_right(grown: Trees) -> None:
    numbers = rows(50, seed=3)
    np.testing.assert_array_equal(grown.predict(np.asfortranarray(numbers)), grown.predict(numbers))
    np.testing.assert_array_equal(grown.predict(numbers[::2]), grown.predict(numbers)[::2])


def test_rows_of_another_shape_or_kind_are_refused(grown: Trees) -> None:
    with pytest.raises(ValueError, match=r"rows: must be of shape \(n, 6\), not \[4, 5\]"):
        grown.predict(np.zeros((4, 5)))
    with pytest.raises(ValueError, match=r"rows: must be of shape \(n, 6\), not \[6\]"):
        grown.predict(np.zeros(6))
    with pytest.raises(BufferError):
        Forest(grown.text).predict(np.zeros((4, 6), dtype=np.float32).data)


def test_trees_come_back_as_they_were_saved(grown: Trees, tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    grown.save(path)
    numbers = rows(100, seed=4)
    np.testing.assert_array_equal(Trees.load(path, 6).predict(numbers), grown.predict(numbers))
    with pytest.raises(PredictorError, match=r"trees\.txt: has 6 features, not 7; train again"):
        Trees.load(path, 7)
    path.write_text(grown.text.replace("num_cat=0", "num_cat=1", 1))
    with pytest.raises(PredictorError, match=r"trees\.txt: cannot be read: tree 0: num_cat"):
        Trees.load(path, 6)


def test_a_model_that_is_only_asked_loads_no_lightgbm() -> None:
    code = """
import sys
from heddle_planner.predictor import models
from heddle_planner.predictor.features import Progress
from heddle_planner.predictor.observations import Origin

said = models.load().predictor.predict([Progress(Origin("t", "")).features()])
assert said.mean[0] >= 1
assert "lightgbm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
