"""How long the next tool gap will be: by the tool's name, and by what this trajectory's gaps were like.

Logarithms of gaps are taken as normal, their moments forgetting the old (programs and machines change). A
tool seen seldom leans on all tools; a trajectory moves its tool's mean by how its own gaps differed from what
was expected.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

MOST_TOOLS: Final = 1_024
MOST_TRAJECTORIES: Final = 50_000
MEMORY: Final = 200.0
"""Gaps that a tool's mean looks back over."""
WEIGHT: Final = 3.0
"""Gaps that all tools together count for in the estimate of one."""
OWN_WEIGHT: Final = 4.0
PRIOR: Final = (math.log(1.0), 1.5)
"""Median second, and the spread of the logarithm: coding tools are below a second mostly, with tails of
minutes.
"""
LEAST_SECONDS: Final = 0.001

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GapForecast:
    """Seconds: expected, median, and the bounds of the 90 % interval."""

    mean: float
    median: float
    low: float
    high: float


@dataclass(slots=True)
class _Recent:
    """Mean and variance that forget: a new value counts 1 / min(count, MEMORY)."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        share = 1.0 / min(self.count, MEMORY)
        off = value - self.mean
        self.mean += share * off
        self.variance = (1.0 - share) * (self.variance + share * off * off)

    def mean_with_prior(self, mean: float) -> float:
        seen = self.count if self.count < MEMORY else MEMORY
        return (seen * self.mean + WEIGHT * mean) / (seen + WEIGHT)

    def with_prior(self, mean: float, spread: float) -> tuple[float, float]:
        seen = min(self.count, MEMORY)
        total = seen + WEIGHT
        middle = (seen * self.mean + WEIGHT * mean) / total
        between = seen * WEIGHT / (total * total) * (self.mean - mean) ** 2
        return middle, math.sqrt((seen * self.variance + WEIGHT * spread**2) / total + between)


class GapPredictor:
    """Bounded; the tools and trajectories heard of longest ago go first. A trajectory is named by what tells
    it from all others, its tenant included; None where it is no matter whose gap it is.
    """

    def __init__(self) -> None:
        self._all = _Recent()
        self._tools: OrderedDict[str, _Recent] = OrderedDict()
        self._own: OrderedDict[Hashable, _Recent] = OrderedDict()

    def learn(self, trajectory: Hashable, tool: str, seconds: float) -> None:
        """A gap is over. What is not a number of seconds is left out."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        value = math.log(max(LEAST_SECONDS, seconds))
        _kept(self._own, trajectory, MOST_TRAJECTORIES).add(value - self._mean_of_tool(tool))
        _kept(self._tools, tool, MOST_TOOLS).add(value)
        self._all.add(value)

    def predict(self, trajectory: Hashable, tool: str) -> GapForecast:
        """For the gap after a call of ``tool`` (empty where none was called)."""
        center, spread = self._of_tool(tool)
        own = self._own.get(trajectory)
        if own is not None:
            center += own.mean * own.count / (own.count + OWN_WEIGHT)
        # The mean of a lognormal runs away with its spread; beyond this a tail of the data says more.
        spread = min(spread, 2.0)
        return GapForecast(
            mean=math.exp(center + spread**2 / 2),
            median=math.exp(center),
            low=math.exp(center - 1.645 * spread),
            high=math.exp(center + 1.645 * spread),
        )

    def median(self, trajectory: Hashable, tool: str) -> float:
        """That of `predict`, in a fraction of its time: one is wanted for each trajectory of a batch."""
        center = self._mean_of_tool(tool)
        own = self._own.get(trajectory)
        if own is not None:
            center += own.mean * own.count / (own.count + OWN_WEIGHT)
        return math.exp(center)

    def forget(self, trajectory: Hashable) -> None:
        """The trajectory is over."""
        self._own.pop(trajectory, None)

    def _mean_of_tool(self, tool: str) -> float:
        center = self._all.mean_with_prior(PRIOR[0])
        seen = self._tools.get(tool)
        return seen.mean_with_prior(center) if seen is not None else center

    def _of_tool(self, tool: str) -> tuple[float, float]:
        center = self._all.with_prior(*PRIOR)
        seen = self._tools.get(tool)
        return seen.with_prior(*center) if seen is not None else center


def _kept(book: OrderedDict[_Name, _Recent], name: _Name, most: int) -> _Recent:
    found = book.get(name)
    if found is None:
        found = book[name] = _Recent()
        if len(book) > most:
            book.popitem(last=False)
    book.move_to_end(name)
    return found
