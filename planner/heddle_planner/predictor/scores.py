"""How good predictions are: the numbers of `heddle predictor eval`.

Ranks are only compared between predictions of one model: within a fold. A score of several folds is their
mean, weighted by rows; slope and coverage are of all rows together.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

from heddle_planner.predictor.protocol import Floats, Prediction

MOST_PAIRED: Final = 200_000


class Scores(TypedDict):
    """``recall_top10``: share of the longest 10 % that are among the 10 % with the largest predictions; all
    by remaining length. ``concordance``: share of pairs in the right order, ties in the prediction count
    half. ``mae`` in tokens. ``calibration_slope``: of the least-squares line of truth on prediction.
    ``coverage50`` and ``coverage90``: share of truths within the predicted 25-75 % and 5-95 % intervals. A
    figure that the rows do not give is None (fewer than two rows), or 0 for a correlation with a constant.
    """

    rows: int
    recall_top10: float | None
    recall_top5: float | None
    pearson: float | None
    spearman: float | None
    concordance: float | None
    mae: float | None
    calibration_slope: float | None
    coverage50: float | None
    coverage90: float | None


def recall_of_longest(truth: Floats, said: Floats, share: float) -> float | None:
    """Recall of the longest ``share``, at least one; a tie at the edge of the predicted set counts by its
    chance.
    """
    if len(truth) < 2:
        return None
    count = max(1, round(share * len(truth)))
    longest = np.argsort(-truth, kind="stable")[:count]
    edge = np.sort(said)[::-1][count - 1]
    above, tied = said > edge, said == edge
    chance = (count - int(above.sum())) / int(tied.sum())
    return float((above[longest] + chance * tied[longest]).sum() / count)


def pearson(truth: Floats, said: Floats) -> float | None:
    """Linear correlation; 0 where one is constant."""
    if len(truth) < 2:
        return None
    if np.ptp(truth) == 0 or np.ptp(said) <= 1e-12 * max(1.0, float(np.abs(said).max())):
        return 0.0
    return float(np.corrcoef(truth, said)[0, 1])


def spearman(truth: Floats, said: Floats) -> float | None:
    """Correlation of ranks."""
    return pearson(rankdata(truth), rankdata(said)) if len(truth) >= 2 else None


def concordance(truth: Floats, said: Floats) -> float | None:
    """Share of pairs with different truths that are predicted in their order, exactly, in O(n log n)."""
    pairs = len(truth) * (len(truth) - 1) / 2

    def tied(values: Floats) -> float:
        counts = np.unique(values, return_counts=True)[1].astype(np.float64)
        return float((counts * (counts - 1) / 2).sum())

    comparable = pairs - tied(truth)
    if comparable <= 0:
        return None
    ordered = pairs - tied(said)
    if ordered <= 0:
        return 0.5
    tau_b = float(kendalltau(truth, said).statistic)
    return 0.5 + 0.5 * tau_b * float(np.sqrt(ordered / comparable))


def calibration_slope(truth: Floats, said: Floats) -> float | None:
    """Slope of truth on prediction; None where the prediction is constant."""
    if len(truth) < 3 or np.ptp(said) <= 1e-9 * max(1.0, float(np.abs(said).max())):
        return None
    centered = said - said.mean()
    return float(centered @ (truth - truth.mean()) / (centered @ centered))


def mean_of_folds(
    measure: Callable[[Floats, Floats], float | None], truth: Floats, said: Floats, folds: NDArray[np.intp]
) -> float | None:
    """Of (truth, prediction) within each fold, weighted by rows; folds that do not give it are left out."""
    parts = [folds == fold for fold in np.unique(folds)]
    found = [(measure(truth[part], said[part]), int(part.sum())) for part in parts]
    known = [(value, rows) for value, rows in found if value is not None]
    if not known:
        return None
    return float(sum(value * rows for value, rows in known) / sum(rows for _, rows in known))


def score(truth: Floats, said: Prediction, folds: NDArray[np.intp]) -> Scores:
    """Scores of rows that were predicted by the models of ``folds``."""

    def mean_of(measure: Callable[[Floats, Floats], float | None]) -> float | None:
        return mean_of_folds(measure, truth, said.mean, folds)

    inside = [
        float(((truth >= said.quantiles[:, low]) & (truth <= said.quantiles[:, high])).mean())
        if len(truth)
        else None
        for low, high in ((1, 3), (0, 4))
    ]
    return Scores(
        rows=len(truth),
        recall_top10=mean_of(lambda t, s: recall_of_longest(t, s, 0.10)),
        recall_top5=mean_of(lambda t, s: recall_of_longest(t, s, 0.05)),
        pearson=mean_of(pearson),
        spearman=mean_of(spearman),
        concordance=mean_of(concordance),
        mae=float(np.abs(truth - said.mean).mean()) if len(truth) else None,
        calibration_slope=calibration_slope(truth, said.mean),
        coverage50=inside[0],
        coverage90=inside[1],
    )


def reliability(truth: Floats, said: Floats, bins: int = 10) -> Sequence[tuple[float, float, int]]:
    """Mean prediction, mean truth and rows of each tenth of the predictions, lowest first."""
    order = np.argsort(said, kind="stable")
    return [
        (float(said[part].mean()), float(truth[part].mean()), len(part))
        for part in np.array_split(order, min(bins, len(order)))
        if len(part)
    ]
