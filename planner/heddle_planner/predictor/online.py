"""Keeps learning while it serves: a window of finished trajectories, drift, refits in the background.

`predict` uses the model in place, whatever a refit is doing; a finished refit takes its place in one
assignment, and the one before is kept. A refit learns from moments as they were when a forecast was made,
finished siblings and all, and is swapped in only where it does better than the model in place on such moments
of prompts that it was not fitted to. Of trajectories that began together it learns once nearly all are over:
those that are over first are the short ones. Anything that goes wrong in a model ends in `History`, never
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
MOST_MOMENTS: Final = 96
"""Moments kept of one trajectory for refits, spread over it."""
FIRST_REFIT: Final = 64
"""Finished trajectories before the first refit: fewer say less than the model that ships."""
REFIT_GROWTH: Final = 1.5
"""A refit when this many times as many have finished as at the last one, at most `WINDOW` / 4 apart."""
HELD_BACK: Final = 0.2
"""Share of the window, the newest prompts, that a refit is judged by."""
MOST_OPEN: Final = 0.01
"""Share of those that began up to some moment that may still run when a refit learns from the others. Those
few count as longer than what was seen of them."""
ASKED_AGAIN: Final = 16
"""Trajectories that finish before it is looked again whether enough are whole."""
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


_Learned = tuple[Trajectory, list[Example]]
"""A finished trajectory, and the moments of it that are kept."""


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
    ``running`` tells the trajectories under way as far as they have come, for those that are over to be known
    for the short ones of their time; without it, all are taken for over.

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
        self._window: deque[_Learned] = deque(maxlen=WINDOW)
        self._finished = 0
        self._fitted_at = 0
        self._refits = self._refused = self._failures = 0
        self.running: Callable[[], Sequence[Trajectory]] = tuple
        self._asked_at = 0
        self._whole_until = -math.inf
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
        """A trajectory is over; may start a refit. What it says of its siblings is learned with it. One that
        was learned before, and went on, takes the place of what it was then.
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
        if self._refit_is_due() and self._finished - self._asked_at >= ASKED_AGAIN:
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
        """Begins one in the background, unless one runs, it is closing, or too few are over of those that
        began together.
        """
        if self._closing or (self._thread is not None and self._thread.is_alive()):
            return
        self._asked_at = self._finished
        running = self.running()
        until = whole_until([one for one, _ in self._window], running)
        window = [learned for learned in self._window if _start(learned[0]) <= until]
        if len(window) < FIRST_REFIT or (running and until == self._whole_until):
            return
        self._fitted_at, self._whole_until = self._finished, until
        cut_off = [one for one in running if one.steps and _start(one) <= until]
        self._thread = threading.Thread(target=self._refit, args=(window, cut_off), name="refit", daemon=True)
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

    def _refit(self, window: list[_Learned], cut_off: list[Trajectory]) -> None:
        older, newest = _parted(window)
        still_open = [_moments(one) for one in cut_off]
        held = {examples[0].task for _, examples in newest}
        try:
            candidate = self._make()
            candidate.fit(
                _numbered(
                    [
                        *(examples for _, examples in older),
                        *(one for one in still_open if one[0].task not in held),
                    ]
                )
            )
            better = _error(candidate, newest) <= _error(self._model, newest)
            if better:
                # Judged; now the newest too.
                candidate = self._make()
                candidate.fit(_numbered([*(examples for _, examples in window), *still_open]))
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


def _start(one: Trajectory) -> float:
    return -math.inf if one.started_at is None else one.started_at


def whole_until(finished: Sequence[Trajectory], running: Sequence[Trajectory]) -> float:
    """The last start up to which at most `MOST_OPEN` of all that began still run, on the clock of
    ``started_at``; -inf where there is none.
    """
    begun: dict[float, list[int]] = {}
    for runs, several in enumerate((finished, running)):
        for one in several:
            begun.setdefault(_start(one), [0, 0])[runs] += 1
    until, over, still = -math.inf, 0, 0
    for start in sorted(begun):
        over, still = over + begun[start][0], still + begun[start][1]
        if still <= MOST_OPEN * (over + still):
            until = start
    return until


def _moments(finished: Trajectory) -> list[Example]:
    """Of one trajectory, spread over it: half of them evenly, and as many that are early ones mostly."""
    examples = make_examples([finished], [finished.origin.prompt or finished.origin.trajectory_id])
    if len(examples) <= MOST_MOMENTS:
        return examples
    half = MOST_MOMENTS // 2
    early, evenly = np.geomspace(1, len(examples), half), np.linspace(1, len(examples), half)
    places = np.unique(np.concatenate([early, evenly]).astype(np.intp) - 1)
    return [examples[place] for place in places.tolist()]


def _parted(window: Sequence[_Learned]) -> tuple[list[_Learned], list[_Learned]]:
    """What a refit is fitted to, and what it is judged by: whole prompts, those that began last, since those
    to come will be other prompts. By who ended last it would be judged by the longest ones alone, with their
    siblings learned by heart. A prompt that is most of the window is not held back whole.
    """
    wanted = max(8, round(HELD_BACK * len(window)))
    prompts: dict[str, list[int]] = {}
    begun: dict[str, tuple[float, int]] = {}
    for place, (one, examples) in enumerate(window):
        prompt = examples[0].task
        prompts.setdefault(prompt, []).append(place)
        started = _start(one), place
        begun[prompt] = max(begun.get(prompt, started), started)
    held: set[int] = set()
    for prompt in sorted(prompts, key=lambda prompt: begun[prompt], reverse=True):
        if len(held) >= wanted:
            break
        if 2 * (len(held) + len(prompts[prompt])) <= len(window):
            held.update(prompts[prompt])
    if not held:
        held.update(range(len(window) - wanted, len(window)))
    parts: tuple[list[_Learned], list[_Learned]] = ([], [])
    for place, learned in enumerate(window):
        parts[place in held].append(learned)
    return parts


def _numbered(window: Sequence[Sequence[Example]]) -> list[Example]:
    return [
        Example(example.features, example.remaining, example.task, number, example.finished)
        for number, examples in enumerate(window)
        for example in examples
    ]


def _error(model: Predictor, judged: Sequence[_Learned]) -> float:
    """Mean absolute error of the logarithm of the median. A moment counts for all up to the next one that was
    kept: most forecasts are made late in long trajectories, of which few moments are kept.
    """
    examples = [example for _, kept in judged for example in kept]
    said = model.predict([example.features for example in examples])
    truth = np.log1p([example.remaining for example in examples])
    ends = [[*(example.features.steps for example in kept[1:]), len(one.steps)] for one, kept in judged]
    stands_for = np.array([end for several in ends for end in several]) - np.array(
        [example.features.steps for example in examples]
    )
    return float(np.average(np.abs(np.log1p(said.quantiles[:, 2]) - truth), weights=stands_for))
