"""What words tell: ridge regression on hashed words and word pairs.

A set has hundreds of trajectories and thousands of words, so a linear model, pulled hard towards nothing,
reads the text, and trees take its opinion as one number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from heddle_planner.predictor.cues import WORD_BUCKETS
from heddle_planner.predictor.protocol import Floats, PredictorError

RIDGE: Final = 3.0
_TURNS: Final = 60

Words = Sequence[NDArray[np.int64] | None]


@dataclass(slots=True)
class Wording:
    """A weight for each bucket; texts count alike whatever their length. Knows nothing until fitted."""

    level: float = 0.0
    slopes: Floats = field(default_factory=lambda: np.zeros(WORD_BUCKETS))

    @classmethod
    def fit(cls, words: Words, target: Floats, weight: Floats) -> Self:
        """By conjugate gradients; rows without text are left out. Shapes (n,)."""
        rows = np.array([row for row, found in enumerate(words) if found is not None], dtype=np.intp)
        if len(rows) < 2:
            return cls()
        matrix = _matrix([words[row] for row in rows.tolist()])
        goal, load = target[rows], weight[rows]
        level = float(np.average(goal, weights=load))
        normal = LinearOperator(
            (WORD_BUCKETS, WORD_BUCKETS),
            matvec=lambda x: matrix.T @ (load * (matrix @ x)) + RIDGE * x,
            dtype=np.float64,
        )
        slopes, _ = cg(normal, matrix.T @ (load * (goal - level)), maxiter=_TURNS, rtol=1e-3)
        return cls(level, np.asarray(slopes, dtype=np.float64))

    def predict(self, words: Words) -> Floats:
        """The target's expectation; 0 for rows without text. Shape (n,)."""
        said = np.zeros(len(words))
        rows = [row for row, found in enumerate(words) if found is not None and len(found)]
        if not rows:
            return said
        found = [found for found in words if found is not None and len(found)]
        counts = np.array([len(one) for one in found])
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        sums = np.add.reduceat(self.slopes[np.concatenate(found)], starts)
        said[rows] = self.level + sums / np.sqrt(counts)
        return said

    def save(self, path: Path) -> None:
        """As a NumPy array: level, then slopes."""
        np.save(path, np.concatenate([[self.level], self.slopes]).astype(np.float32), allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises OSError, PredictorError."""
        try:
            values = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        except (ValueError, EOFError) as error:
            raise PredictorError(f"{path}: cannot be read: {error}") from error
        if values.shape != (WORD_BUCKETS + 1,) or not np.isfinite(values).all():
            raise PredictorError(f"{path}: is not {WORD_BUCKETS + 1} finite numbers; train again")
        return cls(float(values[0]), values[1:])


def _matrix(words: Sequence[NDArray[np.int64] | None]) -> sparse.csr_matrix:
    columns = [found for found in words if found is not None]
    counts = np.array([len(found) for found in columns])
    starts = np.concatenate([[0], np.cumsum(counts)])
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    return sparse.csr_matrix((values, np.concatenate(columns), starts), shape=(len(columns), WORD_BUCKETS))
