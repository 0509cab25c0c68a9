"""Which of several ways to run a rollout is best, told from a few other draws of it.

On one draw the trajectory that happens to end last decides, and two draws of the same workload differ by more
than two good ways do. So every way is rehearsed on the first draw, those that are close to the best on
the next, and so on: most of the runs are spent where they can change the choice.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

REHEARSALS: Final = 3
"""Draws at most. With one, the choice takes 2.5 % longer on the recorded airline set than the best way in
hindsight does, with two 1.1 %, with three 0.8 % (docs/policy-lab.md)."""
CLOSE: Final = 1.05
"""A way that has taken more than so many times as long as the best is left out of the next draw: by so much
do two ways change places between two draws of that set."""

Draw = Callable[[str], float | None]
"""Seconds that a way takes on a draw, by its name; None where it cannot be tried."""


def choose(names: Iterable[str], draws: Sequence[Draw]) -> tuple[str, dict[str, float]]:
    """The best of ``names``, and the mean seconds of each over the draws that it was tried on. Equals go by
    name. Raises ValueError when the first draw can try none.
    """
    spans: dict[str, list[float]] = {}
    left = list(names)
    for number, seconds in enumerate(draws):
        if number and len(left) <= 1:
            break
        tried = {name: span for name in left if (span := seconds(name)) is not None}
        if not tried:
            break
        for name, span in tried.items():
            spans.setdefault(name, []).append(span)
        least = min(_mean(spans[name]) for name in tried)
        left = [name for name in tried if _mean(spans[name]) <= CLOSE * least]
    if not spans:
        raise ValueError("nothing could be rehearsed")
    means = {name: _mean(span) for name, span in spans.items()}
    return min(left, key=lambda name: (means[name], name)), means


def _mean(spans: Sequence[float]) -> float:
    return sum(spans) / len(spans)
