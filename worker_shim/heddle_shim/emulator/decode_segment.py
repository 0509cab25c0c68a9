"""A run of decode steps with an unchanging batch, in closed form.

Step k (from 0) of a segment takes ``first_step + k * growth`` seconds: the batch is constant and its
context grows by one token a request and step. So n steps take n * first_step + growth * n * (n - 1) / 2,
and how many fit into a time is the root of a quadratic. Nothing is done per token.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeSegment:
    """Started at ``start`` (simulated seconds); ends by itself after ``steps`` steps."""

    start: float
    first_step: float
    growth: float
    steps: int

    def duration(self, steps: int) -> float:
        """Seconds that the first ``steps`` steps take."""
        return steps * self.first_step + self.growth * (steps * (steps - 1) / 2)

    def time_after(self, steps: int) -> float:
        """When step number ``steps`` (from 1) is complete."""
        return self.start + self.duration(steps)

    def steps_by(self, now: float) -> int:
        """Steps complete at ``now``; exact against ``time_after``, at most ``steps``."""
        elapsed = now - self.start
        if elapsed <= 0:
            return 0
        if self.growth > 0:
            half = self.first_step - self.growth / 2
            guess = (math.sqrt(half * half + 2 * self.growth * elapsed) - half) / self.growth
        else:
            guess = elapsed / self.first_step
        steps = min(self.steps, int(guess))
        # The root is rounded; the schedule is defined by time_after, so step to agree with it.
        while steps < self.steps and self.time_after(steps + 1) <= now:
            steps += 1
        while steps > 0 and self.time_after(steps) > now:
            steps -= 1
        return steps
