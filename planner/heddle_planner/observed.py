"""What the planner has seen: running trajectories as features, finished ones as lessons, its own errors.

Fed by the gateway's step records; answers with forecasts. Everything is bounded: the trajectories heard of
longest ago are forgotten first, finished ones are kept for the next plans up to a number.

Invariants: a record that was seen before changes nothing, not even of a trajectory that is over by now; an
error is counted once, when its trajectory is over, for the forecasts that were made of it; what came back
after it was taken for over is known once, as what it is now; of one name, one at most is under way or rests;
nothing here blocks or waits.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from heddle_contracts.predictions import ANNOUNCED_TENANT, Forecast, NewTrajectory, StepBatch
from heddle_contracts.steps import Outcome, StepRecord
from heddle_core import Siblings

from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.gap import GapPredictor
from heddle_planner.predictor.observations import EndedStep, Origin, Trajectory, origin_of, step_of
from heddle_planner.predictor.online import OnlinePredictor
from heddle_planner.predictor.protocol import Prediction
from heddle_planner.predictor.siblings import FinishedSiblings, Sibling
from heddle_planner.running_error import RunningError
from heddle_planner.simulate.scripts import Script, Turn

Key = tuple[str, str]
"""Tenant, trajectory id."""

MOST_RUNNING: Final = 50_000
MOST_RESTING: Final = 10_000
GAPS_OF_LATE: Final = 1_024
ENOUGH_GAPS: Final = 64
"""Tool gaps that tell how long one may be."""
MOST_OVER: Final = 10_000
"""Trajectories that are over whose last record is remembered: a batch that is sent again comes in seconds."""
MOST_GROUPS: Final = 65_536
"""Groups of which it is remembered who had them last."""
MOST_PAST: Final = 512
"""Finished trajectories that plans are rehearsed with."""
ENOUGH_PAST: Final = 16
"""Finished trajectories from which on running ones do not stand in for them."""
MOST_STEPS_KEPT: Final = 2_000
"""Of one trajectory; a longer one teaches with its first ones."""


@dataclass(slots=True)
class _Running:
    """One trajectory that is under way. ``heard_at``: seconds of the planner's clock, when its last record
    came; ``ended_at``: when that step ended, seconds of the Unix epoch.
    """

    origin: Origin
    progress: Progress
    started_at: float
    heard_at: float = 0.0
    ended_at: float = 0.0
    last_step: int = -1
    context: int = 0
    siblings: list[Siblings] = field(default_factory=list)
    """Who was known to have finished when the forecast before each step was made, and now."""
    steps: list[EndedStep] = field(default_factory=list)
    forecasts: list[tuple[int, float]] = field(default_factory=list)
    """(tokens done, mean said) at each forecast."""
    taught: tuple[Sibling, Script] | None = None
    """What it was taken for when it was taken for over."""


class Forecaster(Protocol):
    """What is asked of a predictor here."""

    name: ClassVar[str]

    def predict(self, moments: Sequence[StepFeatures]) -> Prediction: ...


class Observed:
    """``predictor`` may be exchanged at any time. ``on_finished`` hears of each trajectory that is over, when
    `teach` is called; of one that came back it hears again, with the same origin and start. ``clock``:
    monotonic seconds.
    """

    def __init__(
        self,
        predictor: Forecaster,
        on_finished: Callable[[Trajectory], None] = lambda finished: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.predictor = predictor
        self._on_finished = on_finished
        self._clock = clock
        self._running: OrderedDict[Key, _Running] = OrderedDict()
        # Taken for over because they are quiet and the gateway does not count them as active any more; they
        # may come back.
        self._resting: OrderedDict[Key, _Running] = OrderedDict()
        # Of those that are over: when the last step ended that was heard of.
        self._over: OrderedDict[Key, float] = OrderedDict()
        # By group: the tenant that finished one of it last; and of any group.
        self._tenants: OrderedDict[str, str] = OrderedDict()
        self._last_tenant: str | None = None
        self._siblings = FinishedSiblings()
        self._lessons: deque[Trajectory] = deque()
        self._past: deque[Script] = deque(maxlen=MOST_PAST)
        self.gaps = GapPredictor()
        self._gaps_of_late: deque[float] = deque(maxlen=GAPS_OF_LATE)
        self.error = RunningError()
        self.steps_seen = 0
        # When the newest step ended that was heard of: about now, by the clock of whoever records.
        self._newest_s = 0.0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def model(self) -> str:
        """Name of the model that speaks now: of one that keeps learning, the one it has in place."""
        if isinstance(self.predictor, OnlinePredictor):
            return self.predictor.state().model
        return self.predictor.name

    @property
    def finished(self) -> int:
        """Finished trajectories that are kept."""
        return len(self._past)

    @property
    def past(self) -> Sequence[Script]:
        """Finished trajectories, oldest first; while there are few, running ones as far as they have come."""
        if len(self._past) >= ENOUGH_PAST:
            return tuple(self._past)
        begun = [self._script_of(one) for one in self._running.values() if one.steps]
        return (*self._past, *begun[-ENOUGH_PAST:])

    def warm_up(self) -> None:
        """Has the model load what it loads at its first prediction."""
        self.predictor.predict([self._features(Progress(Origin(trajectory_id="", prompt="")))])

    def take(self, batch: StepBatch) -> list[Forecast]:
        """Learns of a batch; forecasts for the trajectories in it that go on."""
        self.teach()
        told: dict[Key, int | None] = {}
        announced: dict[Key, _Running] = {}
        for new in batch.new:
            key = (new.tenant, new.trajectory_id)
            if new.tenant == ANNOUNCED_TENANT:
                # Nothing to keep: it comes with its caller's tenant.
                origin = self._foreseen(new)
                announced[key], told[key] = _Running(origin, Progress(origin), 0.0), None
            elif self._meet(new):
                told[key] = None
        for record in batch.steps:
            if self._observe(record):
                told[(record.tenant, record.trajectory_id)] = record.step
        for over in batch.over:
            key = (over.tenant, over.trajectory_id)
            told.pop(key, None)
            if (ended := self._resting.pop(key, None) or self._finish(key)) is not None:
                self._keep_end(key, ended)
        return self._forecasts([(key, announced.get(key) or self._running.get(key)) for key in told], told)

    def unfinished(self) -> list[Trajectory]:
        """Those under way, as far as they have come; with no step where the first has not ended."""
        return [_lesson(running, finished=False) for running in self._running.values()]

    def teach(self) -> None:
        """Hands on what has finished since the last call. A lesson takes as long as tens of forecasts, which
        are answered first.
        """
        while self._lessons:
            self._on_finished(self._lessons.popleft())

    def rest_but(self, active: Set[Key], quiet_s: float) -> None:
        """Takes for over what is not among ``active`` and of which nothing was heard for twice the longest
        tool gap of late, at most for ``quiet_s``: with most agents nobody says when they are done. Without
        the second condition those in a longer gap than usual would count as being as short as they are now.
        What never ended a step is forgotten.
        """
        if len(self._gaps_of_late) >= ENOUGH_GAPS:
            quiet_s = min(quiet_s, 2.0 * max(self._gaps_of_late))
        heard_before = self._clock() - quiet_s
        quiet = [
            key for key, one in self._running.items() if one.heard_at <= heard_before and key not in active
        ]
        for key in quiet:
            if (running := self._finish(key)) is not None:
                self._resting[key] = running
        while len(self._resting) > MOST_RESTING:
            self._keep_end(*self._resting.popitem(last=False))

    # ---------------------------------------------------------------- inside

    def _meet(self, new: NewTrajectory) -> bool:
        """Whether it is one that was not known."""
        key = (new.tenant, new.trajectory_id)
        if key in self._running:
            return False
        self._end_rest(key)
        self._remember(key, _origin_of_new(new), started_at=self._newest_s)
        return True

    def _remember(self, key: Key, origin: Origin, started_at: float) -> _Running:
        siblings = [self._siblings.of(origin.prompt)]
        running = self._running[key] = _Running(
            origin, Progress(origin), started_at, heard_at=self._clock(), siblings=siblings
        )
        if len(self._running) > MOST_RUNNING:
            self._running.popitem(last=False)
        return running

    def _observe(self, record: StepRecord) -> bool:
        """Whether the step says something: it was answered, and is newer than the last one."""
        key = (record.tenant, record.trajectory_id)
        if record.ended_at <= self._over.get(key, -math.inf):
            return False
        rested = self._resting.get(key)
        if rested is not None and record.step > rested.last_step:
            self._come_back(key)
        elif rested is not None and record.step < rested.last_step and record.arrived_at >= rested.ended_at:
            self._end_rest(key)
            rested = None
        running = self._running.get(key, rested)
        if key in self._running:
            self._running.move_to_end(key)
        if record.outcome is not Outcome.DONE or (running is not None and record.step <= running.last_step):
            return False
        if running is None or running.last_step < 0:
            # The first record knows more than who announced it: the prompt as the worker counted it. What was
            # said before it was said all the same.
            met, running = running, self._remember(key, origin_of(record), record.arrived_at)
            if met is not None:
                running.forecasts = met.forecasts
                if met.origin.prompt == running.origin.prompt:
                    running.siblings = met.siblings
        step = step_of(record, running.context)
        if running.steps and record.gap_before_s is not None:
            self.gaps.learn(key, _first_tool(running.steps[-1]), record.gap_before_s)
            self._gaps_of_late.append(record.gap_before_s)
        running.progress.observe(step)
        if len(running.steps) < MOST_STEPS_KEPT:
            running.steps.append(step)
            running.siblings.append(self._siblings.of(running.origin.prompt))
        running.last_step = record.step
        running.heard_at, running.ended_at = self._clock(), record.ended_at
        running.context = record.prompt_tokens + record.output_tokens
        self.steps_seen += 1
        self._newest_s = max(self._newest_s, record.ended_at)
        return True

    def _end_rest(self, key: Key) -> None:
        """Another one of that name has come: one that rests is over for good."""
        if (rested := self._resting.pop(key, None)) is not None:
            self._keep_end(key, rested)

    def _come_back(self, key: Key) -> None:
        """It was not over: what it was taken for is not so."""
        back = self._running[key] = self._resting.pop(key)
        back.forecasts.clear()  # their errors are counted
        if back.taught is not None:
            sibling, script = back.taught
            back.taught = None
            self._siblings.take_back(back.origin.prompt, sibling)
            with suppress(ValueError):  # pushed out since
                self._past.remove(script)

    def _finish(self, key: Key) -> _Running | None:
        """What was learned from; None where there was nothing to learn."""
        running = self._running.pop(key, None)
        if running is None or not running.steps:
            return None
        self._know_group(key, running)
        self.gaps.forget(key)
        done = running.progress.done_tokens
        sibling, script = Sibling(done, running.progress.steps), self._script_of(running)
        running.taught = sibling, script
        self._siblings.add(running.origin.prompt, sibling)
        for before, mean in running.forecasts:
            if done > before:
                self.error.add(mean, done - before)
        self._past.append(script)
        self._lessons.append(_lesson(running, finished=True))
        return running

    def _keep_end(self, key: Key, running: _Running) -> None:
        """A batch whose answer came too late is sent again; its records are then of one that is over."""
        self._over[key] = running.ended_at
        self._over.move_to_end(key)
        if len(self._over) > MOST_OVER:
            self._over.popitem(last=False)

    def _know_group(self, key: Key, running: _Running) -> None:
        tenant = self._last_tenant = key[0]
        _, slash, group = running.origin.prompt.partition("/")
        if slash:
            self._tenants[group] = tenant
            self._tenants.move_to_end(group)
            if len(self._tenants) > MOST_GROUPS:
                self._tenants.popitem(last=False)

    def _foreseen(self, new: NewTrajectory) -> Origin:
        """Of one that was announced and is nobody's yet: as if it were of the tenant that had its group last,
        or else of the one that finished one last.
        """
        tenant = self._tenants.get(new.group_id or "", self._last_tenant)
        return _origin_of_new(new if tenant is None else new.model_copy(update={"tenant": tenant}))

    def _forecasts(
        self, of: Sequence[tuple[Key, _Running | None]], told: dict[Key, int | None]
    ) -> list[Forecast]:
        known = [(key, running) for key, running in of if running is not None]
        if not known:
            return []
        moments = [self._features(running.progress) for _, running in known]
        said = self.predictor.predict(moments)
        found = []
        for (key, running), mean, sigma in zip(known, said.mean, said.sigma, strict=True):
            running.forecasts.append((running.progress.done_tokens, float(mean)))
            found.append(
                Forecast(
                    tenant=key[0],
                    trajectory_id=key[1],
                    step=told[key],
                    mean=float(mean),
                    sigma=float(sigma),
                    gap_s=self._gap_after(key, running),
                )
            )
        return found

    def _features(self, progress: Progress) -> StepFeatures:
        return progress.features(self._siblings.of(progress.origin.prompt))

    def _gap_after(self, key: Key, running: _Running) -> float | None:
        """The median: a move of KV that needs more than that is late every other time."""
        if not running.steps:
            return None
        return self.gaps.median(key, _first_tool(running.steps[-1]))

    def _script_of(self, running: _Running) -> Script:
        steps = running.steps
        usual = self.gaps.median(None, "")
        gaps = [usual if step.gap_before_s is None else step.gap_before_s for step in steps[1:]] + [0.0]
        return Script(
            prompt=max(1, running.origin.prompt_tokens),
            turns=tuple(
                Turn(
                    input=step.input_tokens if index else 0,
                    output=max(1, step.output_tokens),
                    tool_seconds=gap,
                )
                for index, (step, gap) in enumerate(zip(steps, gaps, strict=True))
            ),
        )


def _lesson(running: _Running, *, finished: bool) -> Trajectory:
    return Trajectory(
        running.origin,
        tuple(running.steps),
        finished=finished,
        started_at=running.started_at,
        siblings=tuple(running.siblings[: len(running.steps)]),
    )


def _origin_of_new(new: NewTrajectory) -> Origin:
    return Origin(
        trajectory_id=new.trajectory_id,
        prompt=f"{new.tenant}/{new.group_id}" if new.group_id is not None else "",
        domain=new.tenant,
        model=new.model or "",
        sample=new.sample,
        prompt_tokens=new.prompt_tokens,
    )


def _first_tool(step: EndedStep) -> str:
    return step.tools[0] if step.tools else ""
