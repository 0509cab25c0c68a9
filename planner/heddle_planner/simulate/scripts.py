"""What agents ask for: trajectories as scripts, whatever the schedule is.

Invariants: a script has a step, every step an output; members of a group share a task and the start of their
prompts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle_core import SimWorkload


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM call: tokens appended before it (0 at the first), tokens it generates (at least 1), seconds of
    the tool call it ends with.
    """

    input: int
    output: int
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Script:
    """One trajectory; ``prompt`` is in tokens, ``group`` is the prompt it is a sample of. ``forecasts``: what
    a real predictor said before each step (mean tokens, sigma), or none. ``start``: seconds after the start
    of the rollout at which it begins.
    """

    prompt: int
    turns: tuple[Turn, ...]
    group: int | None = None
    forecasts: tuple[tuple[float, float], ...] = ()
    start: float = 0.0

    @property
    def output(self) -> int:
        """Tokens it generates."""
        return sum(turn.output for turn in self.turns)

    @property
    def context(self) -> int:
        """Largest context of a step, its output included."""
        return self.prompt + self.output + sum(turn.input for turn in self.turns[1:])

    @property
    def tool_seconds(self) -> float:
        """Seconds it waits for tools; nobody waits for what follows the last step."""
        return sum(turn.tool_seconds for turn in self.turns[:-1])

    def cut_to(self, context: int) -> "Script | None":
        """Its beginning that fits ``context`` tokens, as an agent that runs out of context; None if not even
        the first step does.
        """
        kept: list[Turn] = []
        held = self.prompt
        for index, turn in enumerate(self.turns):
            held += (turn.input if index else 0) + turn.output
            if held > context:
                break
            kept.append(turn)
        return replace(self, turns=tuple(kept), forecasts=self.forecasts[: len(kept)]) if kept else None


@dataclass(frozen=True, slots=True)
class Cut:
    """Scripts within a context, and how many were cut short or left out for it."""

    scripts: list[Script]
    shortened: int
    dropped: int


def cut_all(scripts: Sequence[Script], context: int) -> Cut:
    """Every script cut to ``context`` tokens."""
    cut = [script.cut_to(context) for script in scripts]
    kept = [script for script in cut if script is not None]
    shortened = sum(
        one is not None and len(one.turns) < len(script.turns)
        for one, script in zip(cut, scripts, strict=True)
    )
    return Cut(scripts=kept, shortened=shortened, dropped=len(scripts) - len(kept))


def begun_over(scripts: Sequence[Script], seconds: float, seed: int) -> list[Script]:
    """The scripts, begun in their order at random within so many seconds: as Poisson arrivals are, given how
    many come.
    """
    draw = random.Random(seed)
    starts = sorted(draw.uniform(0.0, seconds) for _ in scripts)
    return [replace(script, start=start) for script, start in zip(scripts, starts, strict=True)]


def to_native(scripts: Sequence[Script]) -> SimWorkload:
    """The scripts for the simulator, in their order."""
    foretold = bool(scripts) and all(script.forecasts for script in scripts)
    return SimWorkload(
        [
            (
                script.prompt,
                script.group,
                script.start,
                [(turn.input, turn.output, turn.tool_seconds) for turn in script.turns],
            )
            for script in scripts
        ],
        *([[script.forecasts for script in scripts]] if foretold else []),
    )
