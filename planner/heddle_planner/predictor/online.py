"""Keeps learning while it serves: a window of finished trajectories, drift, refits in the background.

`predict` uses the model in place, whatever a refit is doing; a finished refit takes its place in one
assignment, and the one before is kept. A refit is swapped in only where it does better than the model in
place on trajectories that neither was fitted to. Anything that goes wrong in a model ends in `History`, never
in the caller.

Invariants: memory is bounded by the window; one refit at a time; `learn` and `predict` never wait for one.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from heddle_planner.predictor.boosting import Boosting
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.features import StepFeatures
from heddle_planner.predictor.history import History
from heddle_planner.predictor.observations import Trajectory
from heddle_planner.predictor.protocol import Example, Prediction, Predictor, PredictorError

logger = logging.getLogger(__name__)

WINDOW: Final = 2_000
"""Finished trajectories that a refit learns from; older ones are of older policies."""
MOST_MOMENTS: Final = 24
"""Moments kept of one trajectory for refits, spread over it."""
FIRST_REFIT: Final = 64
"""Finished trajectories before the first refit: fewer say less than the model that ships."""
REFIT_GROWTH: Final = 1.5
"""A refit when this many times as many have finished as at the last one, at most `WINDOW` / 4 apart."""
HELD_BACK: Final = 0.2
"""Share of the window, the newest, that a refit is judged by."""
DRIFT_SHORT: Final = 32
DRIFT_LONG: Final = 512
DRIFT_THRESHOLD: Final = 0.5
"""Drift: the mean of log(actual / predicted) of late is off by this much, in units of its usual spread."""


@dataclass(frozen=True, slots=True)
class OnlineState:
    """What `/stats` says. ``bias``: mean of log(actual / predicted) of late; None while nothing has
    finished.
    """

    model: str
    refits: int
    refused: int
    failures: int
    window: int
    drifted: bool
    bias: float | None
    refitting: bool


class _Drift:
    """Mean error of late against the errors of longer ago."""

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=DRIFT_LONG)

    def add(self, error: float) -> None:
        self._errors.append(error)

    def clear(self) -> None:
        self._errors.clear()

    @property
    def bias(self) -> float | None:
        late = list(self._errors)[-DRIFT_SHORT:]
        return sum(late) / len(late) if late else None

    @property
    def drifted(self) -> bool:
        errors = list(self._errors)
        if len(errors) < 2 * DRIFT_SHORT:
            return False
        late, before = errors[-DRIFT_SHORT:], errors[:-DRIFT_SHORT]
        spread = max(0.1, float(np.std(before)))
        return abs(sum(late) / len(late) - sum(before) / len(before)) > DRIFT_THRESHOLD * spread


class OnlinePredictor:
    """`Predictor` that learns. ``first``: the model to begin with; ``make`` makes the one to refit.

    `learn` and `predict` are for one thread (the service's); refits run in a thread of their own, which
    `close` waits for.
    """

    name: ClassVar[str] = "online"

    def __init__(self, first: Predictor, make: Callable[[], Predictor] = Boosting) -> None:
        self._model = first
        self._before: Predictor | None = None
        self._make = make
        self._history = History()
        self._drift = _Drift()
        self._window: deque[tuple[Trajectory, list[Example]]] = deque(maxlen=WINDOW)
        self._finished = 0
        self._fitted_at = 0
        self._refits = self._refused = self._failures = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    # ------------------------------------------------------------------------------------------ serving

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction:
        """Never raises for a model's sake: what is not finite, or fails, is answered by `History`."""
        try:
            said = self._model.predict(moments)
            sound = (
                len(said) == len(moments)
                and np.isfinite(said.mean).all()
                and np.isfinite(said.sigma).all()
                and (said.mean > 0).all()
            )
        except Exception:
            logger.exception("the model failed; history answers")
            sound = False
        if sound:
            return said
        self._failures += 1
        return self._history.predict(moments)

    def learn(self, finished: Trajectory) -> None:
        """A trajectory is over; may start a refit. One that was learned before, and went on, takes the place
        of what it was then.
        """
        if not finished.steps:
            return
        self._unlearn(finished)
        self._history.learn(finished.origin, finished.output_tokens)
        self._finished += 1
        examples = _moments(finished)
        first = next(example for example in examples if example.features.steps == 0)
        said = self.predict([first.features])
        self._drift.add(math.log(max(1.0, first.remaining)) - math.log(max(1.0, float(said.mean[0]))))
        self._window.append((finished, examples))
        if self._refit_is_due():
            self.start_refit()

    def _unlearn(self, again: Trajectory) -> None:
        if again.started_at is None:  # nothing tells two of one name apart
            return
        for place, (one, _) in enumerate(self._window):
            if one.started_at == again.started_at and one.origin == again.origin:
                del self._window[place]
                return

    def state(self) -> OnlineState:
        """Now."""
        return OnlineState(
            model=self._model.name,
            refits=self._refits,
            refused=self._refused,
            failures=self._failures,
            window=len(self._window),
            drifted=self._drift.drifted,
            bias=self._drift.bias,
            refitting=self._thread is not None and self._thread.is_alive(),
        )

    # ----------------------------------------------------------------------------------------- refitting

    def _refit_is_due(self) -> bool:
        new = self._finished - self._fitted_at
        if len(self._window) < FIRST_REFIT or (self._thread is not None and self._thread.is_alive()):
            return False
        if self._drift.drifted:
            return new >= DRIFT_SHORT
        return new >= min(WINDOW // 4, max(FIRST_REFIT, round((REFIT_GROWTH - 1) * self._fitted_at)))

    def start_refit(self) -> None:
        """Begins one in the background, unless one runs or it is closing."""
        if self._closing or (self._thread is not None and self._thread.is_alive()):
            return
        self._fitted_at = self._finished
        window = [examples for _, examples in self._window]
        self._thread = threading.Thread(target=self._refit, args=(window,), name="refit", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """For the refit under way; False when that takes longer."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def close(self, timeout_s: float = 30.0) -> bool:
        """No further refit; waits for the one under way."""
        self._closing = True
        return self.wait(timeout_s)

    def back(self) -> bool:
        """Puts the model before the last refit in place again; False where there is none."""
        if self._before is None:
            return False
        self._model, self._before = self._before, None
        return True

    def _refit(self, window: list[list[Example]]) -> None:
        held = max(8, round(HELD_BACK * len(window)))
        try:
            candidate = self._make()
            candidate.fit(_numbered(window[:-held]))
            judged = _numbered(window[-held:])
            better = _error(candidate, judged) <= _error(self._model, judged)
            if better:
                # Judged; now the newest too.
                candidate = self._make()
                candidate.fit(_numbered(window))
        except (PredictorError, ValueError, ArithmeticError, MemoryError) as error:
            self._failures += 1
            logger.warning("a refit failed, the model in place stays: %s", error)
            return
        if not better:
            self._refused += 1
            return
        self._before, self._model = self._model, candidate
        self._refits += 1
        self._drift.clear()

    # ----------------------------------------------------------------------------------------- protocol

    def fit(self, examples: Sequence[Example]) -> None:
        """Fits the model in place, at once."""
        candidate = self._make()
        candidate.fit(examples)
        self._before, self._model = self._model, candidate


def _moments(finished: Trajectory) -> list[Example]:
    """Of one trajectory, spread over it: all early ones, fewer later."""
    examples = make_examples([finished], [finished.origin.prompt or finished.origin.trajectory_id])
    if len(examples) <= MOST_MOMENTS:
        return examples
    places = np.unique(np.geomspace(1, len(examples), MOST_MOMENTS).astype(np.intp) - 1)
    return [examples[place] for place in places.tolist()]


def _numbered(window: Sequence[Sequence[Example]]) -> list[Example]:
    return [
        Example(example.features, example.remaining, example.task, number, example.finished)
        for number, examples in enumerate(window)
        for example in examples
    ]


def _error(model: Predictor, examples: Sequence[Example]) -> float:
    """Mean absolute error of the logarithm of the median."""
    said = model.predict([example.features for example in examples])
    truth = np.log1p([example.remaining for example in examples])
    return float(np.abs(np.log1p(said.quantiles[:, 2]) - truth).mean())
