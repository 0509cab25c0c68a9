"""Finished trajectories of the same prompt: the strongest sign of a length before the first step.

Only finished ones are kept: of a sibling that still runs nothing is told, whatever is known of it.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_PROMPTS: Final = 65_536
MOST_SIBLINGS: Final = 64
"""Finished siblings kept of a prompt; the oldest go first, since policies drift."""

SIBLING_FEATURES: Final = (
    "siblings",
    "siblings_log_mean",
    "siblings_log_spread",
    "siblings_log_max",
    "siblings_longer_share",
    "siblings_log_left",
    "siblings_steps_left",
)


@dataclass(frozen=True, slots=True)
class Sibling:
    """A finished trajectory of the prompt: its output tokens and steps."""

    output_tokens: int
    steps: int


class FinishedSiblings:
    """What has finished of each prompt; bounded, the prompts longest unused go first."""

    def __init__(self) -> None:
        self._by_prompt: OrderedDict[str, deque[Sibling]] = OrderedDict()

    def add(self, prompt: str, sibling: Sibling) -> None:
        """A trajectory of ``prompt`` has finished. Nothing is kept where the prompt is not known."""
        if not prompt:
            return
        kept = self._by_prompt.get(prompt)
        if kept is None:
            kept = self._by_prompt[prompt] = deque(maxlen=MOST_SIBLINGS)
            if len(self._by_prompt) > MOST_PROMPTS:
                self._by_prompt.popitem(last=False)
        self._by_prompt.move_to_end(prompt)
        kept.append(sibling)

    def of(self, prompt: str) -> tuple[Sibling, ...]:
        """Finished ones of ``prompt``, oldest first."""
        kept = self._by_prompt.get(prompt)
        return tuple(kept) if kept is not None else ()

    def __len__(self) -> int:
        return len(self._by_prompt)


def sibling_features(siblings: Sequence[Sibling], done_tokens: int, done_steps: int) -> list[float]:
    """Numbers for `SIBLING_FEATURES`; NaN where no sibling tells.

    What is left is the mean over siblings that got further than this trajectory is; where none did, half of
    the tokens it is past the longest is taken as left.
    """
    if not siblings:
        return [0.0] + [math.nan] * (len(SIBLING_FEATURES) - 1)
    logs = [math.log(max(1, sibling.output_tokens)) for sibling in siblings]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / len(logs)) if len(logs) > 1 else math.nan
    further = [s.output_tokens - done_tokens for s in siblings if s.output_tokens > done_tokens]
    more_steps = [s.steps - done_steps for s in siblings if s.steps > done_steps]
    left = sum(further) / len(further) if further else (done_tokens - math.exp(max(logs))) / 2
    return [
        float(len(siblings)),
        mean,
        spread,
        max(logs),
        len(further) / len(siblings),
        math.log1p(max(0.0, left)),
        sum(more_steps) / len(more_steps) if more_steps else 0.0,
    ]
