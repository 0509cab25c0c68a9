"""Parts of a data set that share no task, and thinning of long trajectories."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


def task_folds(tasks: Sequence[str], count: int, seed: int) -> NDArray[np.intp]:
    """A fold for each row; rows of one task are in one fold. Fewer folds where there are fewer tasks.

    Tasks are dealt by size in a random order, so that folds have about the same number of rows.
    """
    names, index, sizes = np.unique(np.asarray(tasks), return_inverse=True, return_counts=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(names))
    count = max(1, min(count, len(names)))
    fold_of = np.empty(len(names), dtype=np.intp)
    # Like cards, in rounds: each round has the tasks of about the same size.
    order = order[np.argsort(-sizes[order], kind="stable")]
    for start in range(0, len(order), count):
        dealt = order[start : start + count]
        fold_of[dealt] = draw.permutation(count)[: len(dealt)]
    return fold_of[index]


def chances(steps: NDArray[np.intp], most: int) -> NDArray[np.float64]:
    """Of each moment, the chance to be learned from: early ones always, ever fewer of later ones, at most
    about ``most`` in all. Neighbouring moments of a trajectory tell nearly the same.
    """
    chance = np.minimum(1.0, 6.0 / np.maximum(steps, 1) + 0.12)
    chance[steps <= 8] = 1.0
    expected = float(chance.sum())
    return np.asarray(chance * (most / expected) if expected > most else chance, dtype=np.float64)


def thinned(chance: NDArray[np.float64], seed: int) -> Rows:
    """Rows, each drawn with its chance; all where none is drawn."""
    kept = np.flatnonzero(np.random.default_rng(seed).random(len(chance)) < chance)
    return kept if len(kept) else np.arange(len(chance))
