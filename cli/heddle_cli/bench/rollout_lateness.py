"""How much of a live rollout was the machine's doing, not the emulated workers' or the policy's.

Emulated seconds are real ones times the speed, so whatever HTTP, Python and a busy processor take makes a
trajectory late by so much times the speed. Nothing is estimated: a trajectory's time, less its tool gaps as
recorded, less the seconds its steps were in modelled engines (each answer says), less the seconds the gateway
held them by decision (its history says), is what the machine took.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle_cli.replay.agent import ReplaySettings, TrajectoryResult
from heddle_cli.replay.rollout import RolloutReport

VALID_SHARE: Final = 0.02
"""A rollout with more lateness than this share of its makespan measured the machine."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Emulated seconds. ``last_s``: of the trajectory that ended last, so by about so much the makespan is
    too long; ``mean_s``: over all trajectories; ``per_step_s``: mean over all steps.
    """

    makespan_s: float
    last_s: float
    mean_s: float
    per_step_s: float

    @property
    def share(self) -> float:
        """Of the makespan, whichever of the two is worse."""
        return max(self.last_s, self.mean_s) / self.makespan_s if self.makespan_s else 0.0

    @property
    def valid(self) -> bool:
        return self.share <= VALID_SHARE


def lateness_of(report: RolloutReport, settings: ReplaySettings, held_s: Mapping[str, float]) -> Lateness:
    """``held_s``: real seconds, by the record's id."""
    late = [_late_s(result, settings, held_s[result.trajectory.id]) for result in report.results]
    last = max(range(len(late)), key=lambda place: report.results[place].ended_at)
    steps = sum(len(result.steps) for result in report.results)
    return Lateness(
        makespan_s=report.makespan_s,
        last_s=late[last],
        mean_s=sum(late) / len(late),
        per_step_s=sum(late) / steps if steps else 0.0,
    )


def _late_s(result: TrajectoryResult, settings: ReplaySettings, held_s: float) -> float:
    gaps = sum(settings.gap_s(step) for step in result.trajectory.steps[: max(0, len(result.steps) - 1)])
    engine = sum(step.engine_s or 0.0 for step in result.steps)
    return (result.seconds - held_s) * settings.speed - gaps - engine
