"""How good the predictions are that the core is told: the command line's words for the simulator's kinds."""

from pathlib import Path
from typing import Any, Final

DEFAULT_NOISE: Final = (1.2, 0.6)
"""Noise on the logarithm before the first step, and the least it falls to (from the fourth step on).

Where the logarithm of lengths spreads by 0.9, which is between the recorded sets (0.68 to 1.19), that is a
pairwise concordance of 0.70 at the first step and 0.81 later. Ridge regression on step counters, contexts and
finished siblings reaches 0.58 to 0.74 on them: a trained predictor should do somewhat better."""

KINDS: Final = (
    "none, oracle, noise, adversarial, calibrated[:FIRST[:LEAST]], biased:FACTOR[:FIRST[:LEAST]],"
    " recorded:MODEL"
)


class PredictionError(ValueError):
    """A kind of prediction that cannot be read."""


def parse_prediction(text: str) -> dict[str, Any]:
    """The simulator's ``prediction`` for a word of the command line. Raises PredictionError.

    ``FIRST`` and ``LEAST`` are standard deviations of the noise on the logarithm of the remaining length.
    """
    if recorded_model(text) is not None:
        return {"kind": "recorded"}
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError as error:
        raise PredictionError(f"{text!r}: {error}; known are {KINDS}") from error
    if kind in ("none", "oracle", "noise", "adversarial") and not values:
        return {"kind": kind}
    if kind == "calibrated" and len(values) <= 2:
        return {"kind": kind, **_noise(values)}
    if kind == "biased" and 1 <= len(values) <= 3:
        return {"kind": kind, "factor": values[0], **_noise(values[1:])}
    raise PredictionError(f"{text!r} is no prediction; known are {KINDS}")


def recorded_model(text: str) -> Path | None:
    """The folder of ``recorded:FOLDER``: a trained predictor's forecasts; ``default``: the packaged one's."""
    kind, _, folder = text.partition(":")
    return Path(folder) if kind == "recorded" and folder else None


def _noise(values: list[float]) -> dict[str, float]:
    first = values[0] if values else DEFAULT_NOISE[0]
    least = values[1] if len(values) > 1 else min(first, DEFAULT_NOISE[1])
    return {"first": first, "least": least}
