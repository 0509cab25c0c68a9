"""Many recorded agents at once: a rollout, and what came of it."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from heddle_cli.replay.agent import ReplaySettings, StepResult, TrajectoryResult, replay
from heddle_cli.replay.conversation import Conversation
from heddle_cli.replay.lean_conversation import LeanAgents
from heddle_cli.replay.loader import RecordedTrajectory
from heddle_cli.replay.sdk_conversation import SdkAgents

NO_KEY: Final = "none"
"""The SDK insists on a key; a gateway without authentication ignores it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rollout stands."""

    steps_done: int
    steps_total: int
    trajectories_done: int
    trajectories_total: int


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """Times are in recorded seconds: real ones times the speed of the replay."""

    results: tuple[TrajectoryResult, ...]
    makespan_s: float
    speed: float

    def trajectory_seconds(self) -> list[float]:
        """Duration of each finished trajectory, shortest first."""
        return sorted(result.seconds * self.speed for result in self.results if result.error is None)

    def quantile_s(self, share: float) -> float:
        """The trajectory time that ``share`` of the finished ones do not exceed; 0 if none finished."""
        times = self.trajectory_seconds()
        if not times:
            return 0.0
        return times[max(0, math.ceil(share * len(times)) - 1)]

    @property
    def cached_share(self) -> float:
        """Prompt tokens found in a cache, of all prompt tokens."""
        prompt = sum(step.prompt_tokens for result in self.results for step in result.steps)
        cached = sum(step.cached_tokens for result in self.results for step in result.steps)
        return cached / prompt if prompt else 0.0

    @property
    def output_tokens(self) -> int:
        return sum(step.output_tokens for result in self.results for step in result.steps)

    @property
    def lost_steps(self) -> int:
        """Steps that were never answered, because their agent had to give up."""
        return sum(result.lost_steps for result in self.results)

    @property
    def errors(self) -> list[str]:
        """What made agents give up."""
        return [f"{one.trajectory.id}: {one.error}" for one in self.results if one.error is not None]


async def run_rollout(
    base_url: str,
    trajectories: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    api_key: str = NO_KEY,
    name_of: Callable[[RecordedTrajectory], str] | None = None,
    lean: bool = False,
) -> RolloutReport:
    """Starts all agents at once and waits for the last. ``base_url`` ends in /v1.

    ``name_of``: what each trajectory calls itself to the gateway; without it nothing names them. ``lean``:
    agents that cost next to nothing instead of such on the openai SDK; they do not stream.
    """
    total = sum(len(trajectory.steps) for trajectory in trajectories)
    steps_done = trajectories_done = 0

    def report() -> None:
        if on_progress is not None:
            on_progress(Progress(steps_done, total, trajectories_done, len(trajectories)))

    def count_step(_: StepResult) -> None:
        nonlocal steps_done
        steps_done += 1
        report()

    async def one(conversation: Conversation, trajectory: RecordedTrajectory) -> TrajectoryResult:
        nonlocal trajectories_done
        result = await replay(conversation, trajectory, settings, count_step)
        trajectories_done += 1
        report()
        return result

    names = [name_of(record) if name_of is not None else None for record in trajectories]
    conversations: list[Conversation]
    async with LeanAgents(base_url, api_key) if lean else SdkAgents(base_url, api_key, len(names)) as agents:
        if isinstance(agents, LeanAgents):
            conversations = [agents.open(settings.model, name) for name in names]
        else:
            conversations = [agents.open(settings.model, name, stream=settings.stream) for name in names]
        started = time.monotonic()
        results = await asyncio.gather(*map(one, conversations, trajectories))
        makespan = (time.monotonic() - started) * settings.speed
    return RolloutReport(tuple(results), makespan, settings.speed)
