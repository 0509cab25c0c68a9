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
from heddle_core import WORD_BUCKETS, Bag, weigh
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from heddle_planner.predictor.features import StepFeatures
from heddle_planner.predictor.protocol import Floats, PredictorError

RIDGE: Final = 3.0
MOST_ROWS: Final = 5_000
"""Rows that a fit looks at: neighbouring moments have nearly the same words."""
_TURNS: Final = 60
_BAGS: Final = 2


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
        said = np.where([_has_words(moment) for moment in moments], self.level, 0.0)
        of_late, so_far = self.slopes
        said += weigh([moment.words for moment in moments], of_late.data)
        said += weigh([moment.said for moment in moments], so_far.data)
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


def _matrix(bags: Sequence[Bag | None]) -> sparse.csr_matrix:
    columns = [np.frombuffer(b"" if bag is None else bag.buckets(), np.uint16) for bag in bags]
    counts = np.array([len(found) for found in columns])
    starts = np.concatenate([[0], np.cumsum(counts)])
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    return sparse.csr_matrix((values, np.concatenate(columns), starts), shape=(len(columns), WORD_BUCKETS))
