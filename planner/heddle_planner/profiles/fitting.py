"""From measurements to a worker's numbers. Pure arithmetic on samples; nothing here talks to a worker.

Model: a decode step takes ``alpha(batch) + kappa x tokens of context in the batch`` seconds. Samples at two
prompt lengths and the same batch separate the two. What is measured is noisy, what is written is not: kappa
>= 0, and alpha never falls with the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass


class FitError(ValueError):
    """Samples that do not determine the numbers."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """Mean seconds of a decode step while `batch` requests ran with together `context` tokens."""

    batch: int
    context: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepFit:
    """alpha by batch, ascending, and kappa."""

    batches: tuple[int, ...]
    step_seconds: tuple[float, ...]
    seconds_per_context_token: float


def fit_steps(samples: Iterable[StepSample]) -> StepFit:
    """alpha and kappa from samples at one or two context lengths a batch. Raises FitError without a sample at
    batch 1.
    """
    by_batch: dict[int, list[StepSample]] = {}
    for sample in samples:
        by_batch.setdefault(sample.batch, []).append(sample)
    if 1 not in by_batch:
        raise FitError("no sample at batch 1; begin the ladder there")
    # kappa: least squares through the differences within a batch, where alpha cancels.
    products = squares = 0.0
    for group in by_batch.values():
        context = sum(sample.context for sample in group) / len(group)
        seconds = sum(sample.seconds for sample in group) / len(group)
        for sample in group:
            products += (sample.context - context) * (sample.seconds - seconds)
            squares += (sample.context - context) ** 2
    kappa = max(0.0, products / squares) if squares > 0 else 0.0
    batches = sorted(by_batch)
    steps: list[float] = []
    for batch in batches:
        group = by_batch[batch]
        alpha = sum(sample.seconds - kappa * sample.context for sample in group) / len(group)
        steps.append(max(alpha, steps[-1] if steps else 0.0))
    if steps[0] <= 0:
        raise FitError("the step time at batch 1 is all context; measure with a shorter prompt")
    return StepFit(tuple(batches), tuple(steps), kappa)


@dataclass(frozen=True, slots=True)
class DecodeMoments:
    """SGLang's sums over decode steps (``/v1/loads`` decode_moments; managers/scheduler.py
    _accumulate_decode_moment): steps, batch, microseconds, batch squared, batch x microseconds, generated
    tokens.
    """

    steps: float
    batch: float
    micros: float
    batch_squared: float
    batch_micros: float
    generated: float

    def __add__(self, other: "DecodeMoments") -> "DecodeMoments":
        return DecodeMoments(
            self.steps + other.steps,
            self.batch + other.batch,
            self.micros + other.micros,
            self.batch_squared + other.batch_squared,
            self.batch_micros + other.batch_micros,
            self.generated + other.generated,
        )


FEWEST_STEPS = 100
"""Decode steps below which the regression says more of chance than of the worker."""


def fit_moments(moments: DecodeMoments, slots: int) -> StepFit:
    """Least squares of step time on batch, t(b) = a + c b, from the sums; context is in c, as it was while
    they were gathered.

    With speculative decoding a step yields more than one token a request; the times are a token's then.
    Raises FitError if the batch never varied or there are too few steps.
    """
    n = moments.steps
    if n < FEWEST_STEPS:
        raise FitError(
            f"decode_moments cover {n:.0f} decode steps; at least {FEWEST_STEPS} are needed: let it serve"
            f" first"
        )
    spread = n * moments.batch_squared - moments.batch**2
    if spread <= 1e-9 * moments.batch**2:
        raise FitError(
            f"every decode step had a batch of {moments.batch / n:.1f}: nothing tells the price of"
            f" company; let it serve a"
            " varying load, or use the ladder"
        )
    slope = (n * moments.batch_micros - moments.batch * moments.micros) / spread
    mean_batch, mean_micros = moments.batch / n, moments.micros / n
    # Neither company nor an empty batch makes a step faster: keep the line through the mean within that.
    slope = min(max(slope, 0.0), mean_micros / mean_batch)
    base = mean_micros - slope * mean_batch
    tokens_a_step = moments.generated / moments.batch if moments.generated > 0 else 1.0
    batches = (1, slots) if slots > 1 else (1,)
    steps = tuple((base + slope * batch) / 1e6 / tokens_a_step for batch in batches)
    return StepFit(batches, steps, 0.0)
