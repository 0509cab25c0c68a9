"""Recorded trajectories as examples: every moment at which a prediction would have been made.

**Time.** Trajectories of one prompt start together, unless ``started_at`` says otherwise. Where every step of
a task's trajectories has its seconds, a sibling counts as finished when its recorded time is over; where
not, each step takes one tick. A prediction after k steps is made as soon as the k-th has ended: it sees
nothing of the tool call that step asked for, and of siblings only those that had finished by then. What a
trajectory itself says of its siblings goes before such reckoning.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from heddle_core import Siblings

from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.observations import Trajectory, tokens_left
from heddle_planner.predictor.protocol import Example
from heddle_planner.predictor.siblings import MOST_SIBLINGS, NO_SIBLINGS, Sibling


def make_examples(
    trajectories: Sequence[Trajectory], tasks: Sequence[str], *, group: str = "", first_number: int = 0
) -> list[Example]:
    """Before each step of each trajectory, in order. ``group`` goes before task names and trajectories are
    numbered from ``first_number``, to keep sets apart.
    """
    by_task: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        by_task.setdefault(task, []).append(index)
    found: list[tuple[int, list[Example]]] = []
    for task, members in by_task.items():
        clocks = _clocks([trajectories[index] for index in members])
        for place, index in enumerate(members):
            siblings = trajectories[index].siblings
            if not siblings:
                finished = _Finished(trajectories, members, clocks, place)
                siblings = tuple(finished.by(reached) for reached in clocks[place][:-1])
            moments = list(moments_of(trajectories[index], siblings))
            left = tokens_left(trajectories[index].steps)
            found.append(
                (
                    index,
                    [
                        Example(
                            moment,
                            float(tokens),
                            f"{group}{task}",
                            first_number + index,
                            trajectories[index].finished,
                        )
                        for moment, tokens in zip(moments, left, strict=True)
                    ],
                )
            )
    found.sort(key=lambda pair: pair[0])
    return [example for _, examples in found for example in examples]


class _Finished:
    """Siblings by the time they finished."""

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        members: Sequence[int],
        clocks: Sequence[list[float]],
        but: int,
    ) -> None:
        ended = sorted(
            (clocks[place][-1], index)
            for place, index in enumerate(members)
            if place != but and trajectories[index].finished
        )
        self._times = [time for time, _ in ended]
        self._siblings = [
            Sibling(trajectories[index].output_tokens, len(trajectories[index].steps)) for _, index in ended
        ]

        self._known: dict[int, Siblings] = {0: NO_SIBLINGS}

    def by(self, time: float) -> Siblings:
        count = bisect_right(self._times, time)
        known = self._known.get(count)
        if known is None:
            known = self._known[count] = Siblings(self._siblings[max(0, count - MOST_SIBLINGS) : count])
        return known


def moments_of(trajectory: Trajectory, siblings: Sequence[Siblings]) -> Iterator[StepFeatures]:
    """What is known before each of its steps; ``siblings``: who had finished by then, for each."""
    progress = Progress(trajectory.origin)
    for known, step in zip(siblings, trajectory.steps, strict=True):
        yield progress.features(known)
        progress.observe(step)


def _clocks(group: Sequence[Trajectory]) -> list[list[float]]:
    """When each trajectory of a task was after 0, 1, ... all of its steps."""
    starts = [trajectory.started_at for trajectory in group]
    timed = all(
        step.seconds is not None and (index == 0 or step.gap_before_s is not None)
        for trajectory in group
        for index, step in enumerate(trajectory.steps)
    )
    clocks = []
    for trajectory, start in zip(group, starts, strict=True):
        now = start if timed and start is not None and None not in starts else 0.0
        clock = [now]
        for index, step in enumerate(trajectory.steps):
            if timed:
                # The gap before a step is over when it starts; a prediction is made before that gap.
                now += (step.gap_before_s or 0.0 if index else 0.0) + (step.seconds or 0.0)
            else:
                now += 1.0
            clock.append(now)
        clocks.append(clock)
    return clocks
