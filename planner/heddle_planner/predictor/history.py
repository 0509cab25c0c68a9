"""The historical baseline: lengths seen of the same prompt, domain and model, and a prior where nothing was
seen.

The logarithm of a trajectory's total length is taken as normal, with the running mean of its prompt, drawn
towards that of its domain, drawn towards that of everything, drawn towards `PRIOR`. What remains after
``done`` tokens is that length given that it is more than ``done``. It reads nothing else, and so never
fails for want of features.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from heddle_core import Siblings
from scipy.special import log_ndtr, ndtri, ndtri_exp

from heddle_planner.predictor.features import StepFeatures
from heddle_planner.predictor.observations import Origin
from heddle_planner.predictor.protocol import QUANTILES, Example, Floats, Prediction, PredictorError
from heddle_planner.predictor.siblings import MOST_PROMPTS, NO_SIBLINGS

PRIOR: Final = (math.log(4_000.0), 1.4)
"""Mean and spread of the logarithm of an unknown agent's total output: between a service agent's 700 tokens
and a coding agent's 17,000 (medians of public recordings), wide enough for both."""
WEIGHT: Final = 2.0
"""Lengths that the wider circle counts for when a mean is drawn towards it."""
LEAST_SPREAD: Final = 0.3


@dataclass(slots=True)
class _Moments:
    """Count, mean and squared deviations of logarithms, by Welford's way."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1.0
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    def drawn_to(self, mean: float, spread: float, weight: float = WEIGHT) -> tuple[float, float]:
        """Mean and spread after ``weight`` further values of the given ones."""
        total = self.count + weight
        middle = (self.count * self.mean + weight * mean) / total
        between = self.count * weight / total * (self.mean - mean) ** 2 / total
        return middle, math.sqrt((self.squares + weight * spread**2) / total + between)


class History:
    """`Predictor` of running means. `learn` takes one finished trajectory at a time."""

    name: ClassVar[str] = "history"

    def __init__(self) -> None:
        self._all = _Moments()
        self._domains: dict[str, _Moments] = {}
        self._prompts: OrderedDict[str, _Moments] = OrderedDict()

    def learn(self, origin: Origin, output_tokens: int) -> None:
        """A trajectory has finished with so many output tokens."""
        log = math.log(max(1, output_tokens))
        self._all.add(log)
        if origin.domain in self._domains or len(self._domains) < MOST_PROMPTS:
            self._domains.setdefault(origin.domain, _Moments()).add(log)
        if origin.prompt:
            self._prompts.setdefault(origin.prompt, _Moments()).add(log)
            self._prompts.move_to_end(origin.prompt)
            if len(self._prompts) > MOST_PROMPTS:
                self._prompts.popitem(last=False)

    def fit(self, examples: Sequence[Example]) -> None:
        """From the first moments of finished trajectories."""
        self._all, self._domains, self._prompts = _Moments(), {}, OrderedDict()
        for origin, total in totals(examples):
            self.learn(origin, total)

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """The length's distribution given what was generated already."""
        return self.told(moments)[1]

    def typical_logs(self, moments: Sequence[StepFeatures]) -> Floats:
        """Mean logarithm of the whole length of such trajectories; does not see how far these have come."""
        return self._totals(moments)[0]

    def told(self, moments: Sequence[StepFeatures]) -> tuple[Floats, Prediction]:
        """`typical_logs` and `predict`, for the work of one."""
        means, spreads = self._totals(moments)
        done = np.array([moment.done_tokens for moment in moments], dtype=np.float64)
        return means, remaining_of_lognormal(means, spreads, done)

    def _totals(self, moments: Sequence[StepFeatures]) -> tuple[Floats, Floats]:
        """Means and spreads of the logarithms of whole lengths."""
        # What moments of a batch have in common is looked up once; siblings are one object a prompt.
        known: dict[tuple[str, str, Siblings], tuple[float, float]] = {}
        totals = []
        for moment in moments:
            shared = (moment.origin.domain, moment.origin.prompt, moment.siblings)
            total = known.get(shared)
            if total is None:
                total = known[shared] = self._total(moment, known)
            totals.append(total)
        means, spreads = np.array(totals, dtype=np.float64).reshape(-1, 2).T
        return means, np.maximum(LEAST_SPREAD, spreads)

    def _total(
        self, moment: StepFeatures, known: dict[tuple[str, str, Siblings], tuple[float, float]]
    ) -> tuple[float, float]:
        domain = (moment.origin.domain, "", NO_SIBLINGS)
        center = known.get(domain)
        if center is None:
            center = known[domain] = self._of_domain(moment.origin.domain)
        prompt = self._prompts.get(moment.origin.prompt)
        if prompt is not None:
            center = prompt.drawn_to(*center)
        if moment.siblings:
            center = _Moments(*moment.siblings.log_moments).drawn_to(*center)
        return center

    def _of_domain(self, name: str) -> tuple[float, float]:
        center = self._all.drawn_to(*PRIOR)
        domain = self._domains.get(name)
        return domain.drawn_to(*center) if domain is not None else center

    def save(self, folder: Path) -> None:
        """``history.json``."""
        body = {
            "all": _listed(self._all),
            "domains": {name: _listed(moments) for name, moments in self._domains.items()},
            "prompts": {name: _listed(moments) for name, moments in self._prompts.items()},
        }
        (folder / "history.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises PredictorError."""
        path = folder / "history.json"
        loaded = cls()
        try:
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            loaded._all = _Moments(*map(float, body["all"]))
            loaded._domains = {name: _Moments(*map(float, three)) for name, three in body["domains"].items()}
            loaded._prompts = OrderedDict(
                (name, _Moments(*map(float, three))) for name, three in body["prompts"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PredictorError(f"{path}: cannot be read: {error!r}") from error
        return loaded


def totals(examples: Iterable[Example]) -> list[tuple[Origin, int]]:
    """Origin and whole length of every finished trajectory that has an example before its first step."""
    return [
        (example.features.origin, round(example.remaining))
        for example in examples
        if example.finished and example.features.steps == 0
    ]


def remaining_of_lognormal(mean: Floats, spread: Floats, done: Floats) -> Prediction:
    """What remains of a lognormal length given that more than ``done`` was generated.

    ``mean`` and ``spread`` are of the logarithm of the whole length.
    """
    floor = np.log(np.maximum(done, 1e-9))
    survival = log_ndtr((mean - floor) / spread)
    # E[T; T > d] = exp(mean + spread^2 / 2) * Phi((mean + spread^2 - log d) / spread)
    expected = np.exp(mean + spread**2 / 2 + log_ndtr((mean + spread**2 - floor) / spread) - survival) - done
    levels = np.array(QUANTILES)
    upper = np.log1p(-levels)[None, :] + survival[:, None]
    quantiles = np.exp(mean[:, None] - spread[:, None] * ndtri_exp(upper)) - done[:, None]
    quantiles = np.maximum.accumulate(np.maximum(np.nan_to_num(quantiles, nan=1.0), 1.0), axis=1)
    sigma = (np.log(quantiles[:, 3]) - np.log(quantiles[:, 1])) / (2 * float(ndtri(0.75)))
    return Prediction(
        mean=np.maximum(np.nan_to_num(expected, nan=1.0), 1.0),
        sigma=np.clip(sigma, 0.05, 5.0),
        quantiles=quantiles,
    )


def _listed(moments: _Moments) -> list[float]:
    return [moments.count, moments.mean, moments.squares]
