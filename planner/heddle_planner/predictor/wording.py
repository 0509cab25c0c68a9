"""What words tell: ridge regression on hashed words, of late and of all that was said so far.

A set has hundreds of trajectories and thousands of words, so a linear model, pulled hard towards nothing,
reads them. What was said so far tells which parts of its work an agent has behind it; the last words tell
where it stands.
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
from heddle_planner.predictor.features import StepFeatures
from heddle_planner.predictor.protocol import Floats, PredictorError

RIDGE: Final = 3.0
MOST_ROWS: Final = 5_000
"""Rows that a fit looks at: neighbouring moments have nearly the same words."""
_TURNS: Final = 60
_BAGS: Final = 2

Words = NDArray[np.uint16] | None


@dataclass(slots=True)
class Wording:
    """A weight for each bucket of each bag; bags count alike whatever they hold. Knows nothing until
    fitted.
    """

    level: float = 0.0
    slopes: Floats = field(default_factory=lambda: np.zeros((_BAGS, WORD_BUCKETS)))

    @classmethod
    def fit(cls, moments: Sequence[StepFeatures], target: Floats, weight: Floats) -> Self:
        """By conjugate gradients; moments without words are left out. Shapes (n,)."""
        rows = np.array([row for row, moment in enumerate(moments) if _has_words(moment)], dtype=np.intp)
        if len(rows) < 2:
            return cls()
        if len(rows) > MOST_ROWS:
            rows = np.sort(np.random.default_rng(11).choice(rows, MOST_ROWS, replace=False))
        some = [moments[row] for row in rows.tolist()]
        of_late, so_far = _matrix([one.words for one in some]), _matrix([one.said for one in some])
        matrix = sparse.hstack([of_late, so_far]).tocsr()
        goal, load = target[rows], weight[rows]
        level = float(np.average(goal, weights=load))
        normal = LinearOperator(
            (_BAGS * WORD_BUCKETS, _BAGS * WORD_BUCKETS),
            matvec=lambda x: matrix.T @ (load * (matrix @ x)) + RIDGE * x,
            dtype=np.float64,
        )
        slopes, _ = cg(normal, matrix.T @ (load * (goal - level)), maxiter=_TURNS, rtol=1e-3)
        return cls(level, np.asarray(slopes, dtype=np.float64).reshape(_BAGS, WORD_BUCKETS))

    def predict(self, moments: Sequence[StepFeatures]) -> Floats:
        """The target's expectation; 0 for moments without words. Shape (n,)."""
        said = np.zeros(len(moments))
        said[[row for row, moment in enumerate(moments) if _has_words(moment)]] = self.level
        of_late = [moment.words for moment in moments]
        so_far = [moment.said for moment in moments]
        for slopes, bags in zip(self.slopes, (of_late, so_far), strict=True):
            rows = [row for row, words in enumerate(bags) if words is not None]
            if not rows:
                continue
            found = [words for words in bags if words is not None]
            counts = np.array([len(one) for one in found])
            starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
            said[rows] += np.add.reduceat(slopes.take(np.concatenate(found)), starts) / np.sqrt(counts)
        return said

    def save(self, path: Path) -> None:
        """As a NumPy array: level, then slopes."""
        np.save(
            path, np.concatenate([[self.level], self.slopes.ravel()]).astype(np.float32), allow_pickle=False
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises OSError, PredictorError."""
        try:
            values = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        except (ValueError, EOFError) as error:
            raise PredictorError(f"{path}: cannot be read: {error}") from error
        wanted = _BAGS * WORD_BUCKETS + 1
        if values.shape != (wanted,) or not np.isfinite(values).all():
            raise PredictorError(f"{path}: is not {wanted} finite numbers; train again")
        return cls(float(values[0]), values[1:].reshape(_BAGS, WORD_BUCKETS))


def _has_words(moment: StepFeatures) -> bool:
    return moment.words is not None or moment.said is not None


def _matrix(bags: Sequence[Words]) -> sparse.csr_matrix:
    columns = [np.empty(0, np.uint16) if words is None else words for words in bags]
    counts = np.array([len(found) for found in columns])
    starts = np.concatenate([[0], np.cumsum(counts)])
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    return sparse.csr_matrix((values, np.concatenate(columns), starts), shape=(len(columns), WORD_BUCKETS))
