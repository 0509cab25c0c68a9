"""Step records to the planner in the tool gap, its forecasts back to the decision core.

    step ends ─▶ put ─▶ queue ─▶ one task: POST ─▶ check every value ─▶ apply ─▶ core re-ranks

Invariants: ``put`` never blocks, awaits or raises; the queue is bounded and drops its oldest; a forecast that
cannot be, or that comes after a later step has ended, is counted and changes nothing; one call at a time.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from heddle_contracts.predictions import Forecast, NewTrajectory, TrajectoryOver
from pydantic_core import to_json

from heddle_gateway.supervision import Background
from heddle_gateway.telemetry.planner_client import PlannerAway, PlannerClient

log = logging.getLogger(__name__)

CAPACITY: Final = 8_192
BATCH: Final = 512
LINGER_S: Final = 0.005
"""How long the first record of a batch waits for company; short, as most tool gaps are."""
MOST_TOKENS: Final = 1e8
MOST_SIGMA: Final = 5.0
MOST_GAP_S: Final = 1e6
MOST_REMEMBERED: Final = 200_000

Apply = Callable[[str, str, float, float, float | None], bool]
"""(tenant, trajectory id, mean, sigma, gap in seconds): False for a trajectory that is not live any more."""


class PlannerFeed:
    """``step`` objects have StepRecord's fields. ``on_replan`` hears why the planner wants to plan anew."""

    COUNTS: ClassVar = (
        "up",
        "queued",
        "calls_total",
        "calls_failed_total",
        "records_sent_total",
        "records_dropped_total",
        "forecasts_applied_total",
        "forecasts_late_total",
        "forecasts_refused_total",
    )

    def __init__(self, client: PlannerClient, apply: Apply, on_replan: Callable[[str], None]) -> None:
        self._client = client
        self._apply = apply
        self._on_replan = on_replan
        self._queue: deque[Any] = deque()
        self._some = asyncio.Event()
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._task = Background("planner-feed", self._run)
        self.sent = self.dropped = self.applied = self.late = self.refused = 0
        self.model: str | None = None

    # ---------------------------------------------------------------- handing over

    def step_ended(self, step: Any) -> None:
        """A sink of ended steps."""
        key = (step.tenant, step.trajectory_id)
        newest = self._newest.pop(key, -1)
        self._newest[key] = max(newest, step.step)
        if len(self._newest) > MOST_REMEMBERED:
            self._newest.popitem(last=False)
        self._put(step)

    def first_step(self, new: NewTrajectory) -> None:
        self._put(new)

    def trajectory_over(self, over: TrajectoryOver) -> None:
        self._newest.pop((over.tenant, over.trajectory_id), None)
        self._put(over)

    def stats(self) -> dict[str, float]:
        """Counts for the metrics, by `COUNTS`."""
        counts = (
            self._client.state == "ready",
            len(self._queue),
            self._client.calls,
            self._client.failed_calls,
            self.sent,
            self.dropped,
            self.applied,
            self.late,
            self.refused,
        )
        return {name: float(count) for name, count in zip(self.COUNTS, counts, strict=True)}

    # ---------------------------------------------------------------- lifetime

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        await self._task.stop()

    # ---------------------------------------------------------------- the task

    def _put(self, item: Any) -> None:
        if len(self._queue) >= CAPACITY:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(item)
        self._some.set()

    async def _run(self) -> None:
        await self._client.greet()
        while True:
            await self._some.wait()
            await asyncio.sleep(max(LINGER_S, self._client.pause_s))
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            if not self._queue:
                self._some.clear()
            if not batch:
                continue
            try:
                answer = await self._client.steps(_body(batch))
            except PlannerAway as error:
                log.debug("planner: %s", error)
                self._put_back(batch)
                continue
            self.sent += len(batch)
            self._take(answer)

    def _put_back(self, batch: list[Any]) -> None:
        """For when it is back: a record is worth something to it as long as there is room."""
        room = CAPACITY - len(self._queue)
        kept = batch[-room:] if room else []
        self.dropped += len(batch) - len(kept)
        self._queue.extendleft(reversed(kept))
        self._some.set()

    def _take(self, answer: Mapping[str, Any]) -> None:
        found, bad = forecasts_of(answer)
        self.refused += bad
        if bad:
            self._client.distrust(f"{bad} of {bad + len(found)} forecasts cannot be")
        for said in found:
            newest = self._newest.get((said.tenant, said.trajectory_id), -1)
            late = newest > (-1 if said.step is None else said.step)
            if not late and self._apply(said.tenant, said.trajectory_id, said.mean, said.sigma, said.gap_s):
                self.applied += 1
            else:
                self.late += 1
        model, replan = answer.get("model"), answer.get("replan")
        self.model = model if isinstance(model, str) else None
        if isinstance(replan, str):
            self._on_replan(replan)


def forecasts_of(answer: Mapping[str, Any]) -> tuple[list[Forecast], int]:
    """The forecasts of an answer that can be, and how many cannot. An answer without a list of them is one
    that cannot.
    """
    said = answer.get("forecasts")
    if not isinstance(said, list):
        return [], 1
    found = [forecast for one in said if (forecast := _forecast(one)) is not None]
    return found, len(said) - len(found)


def _forecast(said: Any) -> Forecast | None:
    if not isinstance(said, dict):
        return None
    tenant, name, step = said.get("tenant"), said.get("trajectory_id"), said.get("step")
    mean, sigma = _number(said.get("mean"), MOST_TOKENS), _number(said.get("sigma"), MOST_SIGMA)
    if not isinstance(tenant, str) or not isinstance(name, str) or mean is None or sigma is None:
        return None
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        return None
    return Forecast.model_construct(
        tenant=tenant,
        trajectory_id=name,
        step=step,
        mean=mean,
        sigma=sigma,
        gap_s=_number(said.get("gap_s"), MOST_GAP_S),
    )


def _number(value: Any, most: float) -> float | None:
    """A finite number from 0 to ``most``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None  # NaN is neither


def _body(batch: list[Any]) -> bytes:
    """The batch as a StepBatch. Written without a model of it: this runs between steps."""
    kinds: dict[str, list[Any]] = {"steps": [], "over": [], "new": []}
    for item in batch:
        if isinstance(item, TrajectoryOver):
            kinds["over"].append(item)
        elif isinstance(item, NewTrajectory):
            kinds["new"].append(item)
        else:
            kinds["steps"].append(item)
    return to_json(kinds)
