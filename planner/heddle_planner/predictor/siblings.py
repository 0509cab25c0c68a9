"""Finished trajectories of the same prompt: the strongest sign of a length before the first step.

Only finished ones are kept: of a sibling that still runs nothing is told, whatever is known of it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from heddle_core import Siblings

MOST_PROMPTS: Final = 65_536
MOST_SIBLINGS: Final = 64
"""Finished siblings kept of a prompt; the oldest go first, since policies drift."""

NO_SIBLINGS: Final = Siblings(())


class Sibling(NamedTuple):
    """A finished trajectory of the prompt: its output tokens and steps."""

    output_tokens: int
    steps: int


@dataclass(slots=True)
class _OfPrompt:
    """``known``: ``kept`` as predictors take it, made when it is asked for."""

    kept: deque[Sibling] = field(default_factory=lambda: deque(maxlen=MOST_SIBLINGS))
    known: Siblings | None = None


class FinishedSiblings:
    """What has finished of each prompt; bounded, the prompts longest unused go first."""

    def __init__(self) -> None:
        self._by_prompt: OrderedDict[str, _OfPrompt] = OrderedDict()

    def add(self, prompt: str, sibling: Sibling) -> None:
        """A trajectory of ``prompt`` has finished. Nothing is kept where the prompt is not known."""
        if not prompt:
            return
        found = self._by_prompt.get(prompt)
        if found is None:
            found = self._by_prompt[prompt] = _OfPrompt()
            if len(self._by_prompt) > MOST_PROMPTS:
                self._by_prompt.popitem(last=False)
        self._by_prompt.move_to_end(prompt)
        found.kept.append(sibling)
        found.known = None

    def take_back(self, prompt: str, sibling: Sibling) -> None:
        """It has not finished after all. Nothing happens where it is not kept any more."""
        found = self._by_prompt.get(prompt)
        if found is not None and sibling in found.kept:
            found.kept.remove(sibling)
            found.known = None

    def of(self, prompt: str) -> Siblings:
        """Finished ones of ``prompt``, oldest first."""
        found = self._by_prompt.get(prompt)
        if found is None:
            return NO_SIBLINGS
        if found.known is None:
            found.known = Siblings(found.kept)
        return found.known

    def __len__(self) -> int:
        return len(self._by_prompt)
