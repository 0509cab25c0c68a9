"""From what was observed to numbers: the one way for training and serving.

`heddle_core.Progress` keeps the figures and makes the rows (``router_rs/crates/progress``): a batch of
hundreds is asked for in every tool gap.
"""

from typing import Final, NamedTuple

import heddle_core
import numpy as np
from heddle_core import FEATURES, Bag, RecentText, Siblings
from numpy.typing import NDArray

from heddle_planner.predictor.observations import EndedStep, Origin
from heddle_planner.predictor.siblings import NO_SIBLINGS

__all__ = ["FEATURES", "PROMPT_TEXT_FEATURES", "Progress", "StepFeatures"]

PROMPT_TEXT_FEATURES: Final = ("log_prompt_text", "prompt_items", "prompt_code", "prompt_questions")
"""Those of `FEATURES` that tell of the prompt's text."""


class StepFeatures(NamedTuple):
    """One trajectory at one moment: after ``steps`` ended steps. ``numbers`` has the order of `FEATURES`, NaN
    where something is not known.
    """

    # A tuple: one is made at each step, and a frozen dataclass takes three times as long to make.

    origin: Origin
    steps: int
    done_tokens: int
    numbers: NDArray[np.float64]
    siblings: Siblings = NO_SIBLINGS
    words: Bag | None = None
    """Words and word pairs of the prompt, the last output and the last observation."""
    said: Bag | None = None
    """Words of all outputs so far, and names of all tools called."""
    recent: RecentText | None = None

    @property
    def text(self) -> str | None:
        """The last observation and output, for models that read; before them the prompt."""
        return None if self.recent is None else str(self.recent)


class Progress:
    """A running trajectory. `observe` takes its steps in order."""

    __slots__ = ("_figures", "origin")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._figures = heddle_core.Progress(origin.prompt_tokens, origin.prompt_text)

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._figures.steps

    @property
    def done_tokens(self) -> int:
        """Output tokens of those."""
        return self._figures.done_tokens

    def observe(self, step: EndedStep) -> None:
        """The next step has ended."""
        self._figures.observe(
            step.output_tokens,
            step.input_tokens,
            step.tools,
            step.seconds,
            step.gap_before_s,
            step.error_before,
            step.observation,
            step.text,
            step.compacted,
        )

    def features(self, siblings: Siblings = NO_SIBLINGS) -> StepFeatures:
        """What is known now; ``siblings`` are the finished ones of its prompt."""
        steps, done, numbers, words, said, recent = self._figures.moment(siblings)
        return StepFeatures(self.origin, steps, done, np.frombuffer(numbers), siblings, words, said, recent)
