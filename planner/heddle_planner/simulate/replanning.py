"""Plans made on the way through a simulated rollout, by the very rounds that a live planner makes.

The simulator asks as the gateway's plan keeper does (`heddle_gateway.plans.keeper`): what is live, with the
core's own estimates, every period and when workers come or go. The answer is `heddle_planner.round`'s plan,
rehearsed, and takes a modelled time to arrive.

Invariant: the answer is a function of the question and of what has ended before it.
"""

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_contracts.planning import ActiveTrajectory, PlanMaking, PlanReason, PlanWorker

from heddle_planner.observed import MOST_PAST
from heddle_planner.round import RoundError, Window, plan_round
from heddle_planner.running_error import RunningError
from heddle_planner.simulate.scripts import Script

LATENCY_S: Final = 2.0
"""Seconds from a question to its answer: a round with rehearsal of some thousand live trajectories."""
TTL_S: Final = 120.0
"""Seconds that a plan holds, as of `heddle planner --plan-ttl`."""


@dataclass(frozen=True, slots=True)
class Replan:
    """When plans are made on the way. Seconds."""

    period_s: float
    latency_s: float = LATENCY_S

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Replan | None":
        """Takes ``replan_s`` and ``replan_latency_s`` out of a policy's settings. Raises ValueError that
        names the setting.
        """
        given = {name: settings.pop(name) for name in ("replan_s", "replan_latency_s") if name in settings}
        for name, seconds in given.items():
            least = 1.0 if name == "replan_s" else 0.0
            if type(seconds) not in (int, float) or not least <= seconds < math.inf:
                raise ValueError(f"{name}: must be seconds, at least {least:g}, not {seconds!r}")
        if not given:
            return None
        if "replan_s" not in given:
            raise ValueError("replan_latency_s: says how late plans arrive; give replan_s too")
        return cls(float(given["replan_s"]), float(given.get("replan_latency_s", LATENCY_S)))

    @property
    def spec(self) -> dict[str, float]:
        """The simulator's ``replan``."""
        return {"period_s": self.period_s, "latency_s": self.latency_s}


class Planner:
    """A planner for one run. ``scripts``: the trajectories of the run; ``past``: trajectories of earlier
    ones, as a planner that has been up for longer has them, not empty.
    """

    def __init__(self, scripts: Sequence[Script], past: Sequence[Script]) -> None:
        self._scripts = scripts
        self._past: deque[Script] = deque(past, maxlen=MOST_PAST)
        self._error = RunningError()

    def __call__(self, question_json: str) -> str | None:
        """The answer to ``heddle_sim::cluster::replanning::Question``; None where no plan can be made."""
        question = json.loads(question_json)
        for said, was in question["errors"]:
            self._error.add(said, was)
        self._past.extend(self._scripts[trajectory] for trajectory in question["ended"])
        window = Window(
            workers=[_worker(row) for row in question["workers"]],
            active=[_trajectory(row) for row in question["active"]],
            past=tuple(self._past),
            error=self._error.sigma,
            policy=question["policy"],
        )
        try:
            plan = plan_round(window, question["at_s"], reason=PlanReason.PERIOD, ttl_s=TTL_S)
        except RoundError:
            return None
        return json.dumps(
            {
                "placement": plan.placement,
                "partition": [{"worker": share.worker, "size": share.size} for share in plan.shares],
                "with_shares": plan.making is PlanMaking.SHARES,
                "ttl_s": plan.expires_at - plan.made_at,
                "fallback": plan.fallback_placement,
            }
        )


def _worker(row: dict[str, Any]) -> PlanWorker:
    return PlanWorker(name=str(row["id"]), **row)


def _trajectory(row: dict[str, Any]) -> ActiveTrajectory:
    # Not validated: the core's own numbers, and there may be many.
    return ActiveTrajectory.model_construct(
        tenant="",
        trajectory_id=str(row["trajectory"]),
        group_id=None if row["group"] is None else str(row["group"]),
        remaining=float(row["remaining"]),
        sigma=row["sigma"],
        context_tokens=row["context_tokens"],
        generated=row["generated"],
    )
