"""A rollout of recorded trajectories: groups of samples of one prompt, with every duration written out.

Where a task was recorded less often than samples are wanted, further ones are recorded runs with their output
lengths scaled by a lognormal factor of mean 1: lengths differ within a group, and less than between groups.

Invariant: a trace read back is the trace that was made; live agents and the simulator act out the same one.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory

WITHIN_GROUP_SIGMA: Final = 0.49
"""Spread of the logarithm of length among samples: that of the recorded airline set, four samples a task."""


class TooFewTasks(ValueError):
    """The records have fewer tasks than groups are wanted."""


def make_groups(
    known: Sequence[RecordedTrajectory],
    *,
    groups: int,
    samples: int,
    max_steps: int,
    seed: int,
    scale_output: float = 1.0,
) -> list[RecordedTrajectory]:
    """``groups`` tasks of ``samples`` trajectories each, of records of at most ``max_steps`` steps; every
    answer ``scale_output`` times as long. Raises TooFewTasks.
    """
    draw = random.Random(seed)
    by_task: dict[str, list[RecordedTrajectory]] = {}
    for one in known:
        if len(one.steps) <= max_steps:
            by_task.setdefault(one.task_id, []).append(one)
    if len(by_task) < groups:
        raise TooFewTasks(
            f"{groups} groups wanted, the records have {len(by_task)} tasks that are short enough"
        )
    chosen = draw.sample(sorted(by_task), groups)
    return [
        _sample(
            by_task[task][number % len(by_task[task])],
            number,
            number >= len(by_task[task]),
            scale_output,
            draw,
        )
        for task in chosen
        for number in range(samples)
    ]


def _sample(
    one: RecordedTrajectory, number: int, copied: bool, scale: float, draw: random.Random
) -> RecordedTrajectory:
    factor = scale
    if copied:
        factor *= math.exp(draw.gauss(-(WITHIN_GROUP_SIGMA**2) / 2, WITHIN_GROUP_SIGMA))
    steps = tuple(
        replace(step, output_tokens=max(1, round(step.output_tokens * factor))) for step in one.steps
    )
    return replace(one, id=f"{one.task_id}#{number}", sample=number, steps=steps)


def write_trace(trajectories: Sequence[RecordedTrajectory], settings: ReplaySettings, path: Path) -> None:
    """The records as the agents act them out: gaps that were not recorded have the replay's default."""
    with path.open("w", encoding="utf-8") as file:
        for one in trajectories:
            file.write(json.dumps(_record(one, settings)) + "\n")


def _record(one: RecordedTrajectory, settings: ReplaySettings) -> dict[str, Any]:
    def gap(seconds: float | None) -> float:
        return min(settings.default_gap_s if seconds is None else seconds, settings.max_gap_s)

    return {
        "id": one.id,
        "task_id": one.task_id,
        "sample": one.sample,
        "domain": one.domain,
        "prompt_tokens0": one.prompt_tokens,
        "steps": [
            {
                "input_new_tokens": step.input_new_tokens,
                "output_tokens": step.output_tokens,
                "tool": "program",
                "tool_seconds": gap(step.tool_seconds),
            }
            for step in one.steps
        ],
    }
