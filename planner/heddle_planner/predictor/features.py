"""From what was observed to numbers: the one function for training and serving.

A `Progress` takes a trajectory's steps as they end and keeps running figures, not the steps: memory and
time a step do not grow with the trajectory. `Progress.features` is what is known at this moment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle_planner.predictor.cues import CUE_FEATURES, TOOL_KINDS, TextCues, tool_kind
from heddle_planner.predictor.observations import EndedStep, Origin
from heddle_planner.predictor.siblings import SIBLING_FEATURES, Sibling, sibling_features

RECENT: Final = 0.35
"""Weight of the newest step in running means of recent steps: about the last five count."""

_OWN_FEATURES: Final = (
    "log_prompt",
    "steps",
    "log_done",
    "log_context",
    "log_mean_output",
    "log_recent_output",
    "log_last_output",
    "log_max_output",
    "output_trend",
    "output_spread",
    "log_mean_input",
    "log_recent_input",
    "log_last_input",
    "log_max_input",
    "output_share",
    "log_seconds",
    "recent_gap",
    "log_mean_gap",
    "log_last_gap",
    "log_max_gap",
    "log_mean_seconds",
    "errors",
    "error_share",
    "recent_errors",
    "steps_since_error",
    "compactions",
    "steps_since_compaction",
    "tools",
    "tool_run",
    "no_tool_steps",
    "steps_since_no_tool",
    "steps_since_long",
    "many_tools",
    "parts",
    "steps_in_part",
    "log_mean_part_steps",
    "log_last_part_steps",
    *(f"share_{kind}" for kind in TOOL_KINDS),
    *(f"recent_{kind}" for kind in TOOL_KINDS),
    *(f"since_{kind}" for kind in TOOL_KINDS),
    "last_kind",
)
FEATURES: Final = (*_OWN_FEATURES, *CUE_FEATURES, *SIBLING_FEATURES)
"""Names of `StepFeatures.numbers`, in order. A saved model names those that it was fitted to."""


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """One trajectory at one moment: after ``steps`` ended steps. ``numbers`` has the order of `FEATURES`, NaN
    where something is not known.
    """

    origin: Origin
    steps: int
    done_tokens: int
    numbers: NDArray[np.float64]
    siblings: tuple[Sibling, ...] = ()
    words: NDArray[np.uint16] | None = None
    """Hashed words and word pairs of the prompt, the last output and the last observation."""
    said: NDArray[np.uint16] | None = None
    """Hashed words of all outputs so far, and names of all tools called."""
    text: str | None = None


def _log(value: float) -> float:
    return math.log1p(max(0.0, value))


@dataclass(slots=True)
class _Running:
    """Mean, recent mean, last and largest of a quantity that may be unknown at some steps."""

    count: int = 0
    total: float = 0.0
    recent: float = math.nan
    last: float = math.nan
    largest: float = math.nan
    log_total: float = 0.0
    log_squares: float = 0.0

    def add(self, value: float | None) -> None:
        if value is None:
            self.last = math.nan
            return
        value = max(0.0, float(value))
        self.count += 1
        self.total += value
        self.recent = value if self.count == 1 else self.recent + RECENT * (value - self.recent)
        self.last = value
        self.largest = value if self.count == 1 else max(self.largest, value)
        log = math.log1p(value)
        self.log_total += log
        self.log_squares += log * log

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def log_spread(self) -> float:
        if self.count < 2:
            return math.nan
        mean = self.log_total / self.count
        return math.sqrt(max(0.0, self.log_squares / self.count - mean * mean))


def _log_or_nan(value: float) -> float:
    return math.nan if math.isnan(value) else _log(value)


@dataclass(slots=True)
class Progress:
    """A running trajectory. `observe` takes its steps in order."""

    origin: Origin
    steps: int = 0
    done_tokens: int = 0
    context_tokens: int = 0
    seconds: float = 0.0
    _output: _Running = field(default_factory=_Running)
    _input: _Running = field(default_factory=_Running)
    _gap: _Running = field(default_factory=_Running)
    _call: _Running = field(default_factory=_Running)
    _errors: int = 0
    _errors_known: int = 0
    _recent_errors: float = 0.0
    _error_at: int = -1
    _compactions: int = 0
    _compacted_at: int = 0
    _tools: set[str] = field(default_factory=set)
    _tool: str = ""
    _tool_run: int = 0
    _no_tool: int = 0
    _no_tool_at: int = -1
    _long_at: int = -1
    _many_tools: int = 0
    _parts: list[int] = field(default_factory=lambda: [0, 0, 0])
    _kinds: list[int] = field(default_factory=lambda: [0] * len(TOOL_KINDS))
    _recent_kinds: list[float] = field(default_factory=lambda: [0.0] * len(TOOL_KINDS))
    _kind_at: list[int] = field(default_factory=lambda: [-1] * len(TOOL_KINDS))
    _last_kind: int = -1
    _cues: TextCues = field(default_factory=TextCues)

    def __post_init__(self) -> None:
        self.context_tokens = self.origin.prompt_tokens
        self._cues.start(self.origin.prompt_text)

    def observe(self, step: EndedStep) -> None:
        """The next step has ended."""
        self.steps += 1
        self.done_tokens += max(0, step.output_tokens)
        if step.compacted:
            self._compactions += 1
            self._compacted_at = self.steps
            self.context_tokens = min(self.context_tokens, self.origin.prompt_tokens)
        self.context_tokens += max(0, step.input_tokens) + max(0, step.output_tokens)
        self._output.add(step.output_tokens)
        if self.steps > 1:
            self._input.add(step.input_tokens)
            self._gap.add(step.gap_before_s)
        self._call.add(step.seconds)
        self.seconds += (step.seconds or 0.0) + (step.gap_before_s or 0.0)
        self._observe_error(step)
        self._observe_tools(step)
        if self.steps > 3 and step.output_tokens > 2 * self._output.mean:
            self._long_at = self.steps
        self._cues.observe(step.text, step.observation, step.tools)

    def _observe_error(self, step: EndedStep) -> None:
        if step.error_before is None:
            return
        self._errors_known += 1
        self._errors += step.error_before
        self._recent_errors += RECENT * (step.error_before - self._recent_errors)
        if step.error_before:
            self._error_at = self.steps

    def _observe_tools(self, step: EndedStep) -> None:
        if len(step.tools) > 1:
            self._many_tools += 1
        kinds = {tool_kind(tool) for tool in step.tools}
        for index in range(len(TOOL_KINDS)):
            present = index in kinds
            self._kinds[index] += present
            self._recent_kinds[index] += RECENT * (present - self._recent_kinds[index])
            if present:
                self._kind_at[index] = self.steps
                self._last_kind = index
        if len(self._tools) < 64:
            self._tools.update(step.tools)
        tool = step.tools[0] if step.tools else ""
        self._tool_run = self._tool_run + 1 if tool == self._tool else 1
        self._tool = tool
        if not step.tools or TOOL_KINDS.index("person") in kinds:
            self._no_tool += 1
            self._no_tool_at = self.steps
            ended, started, _ = self._parts
            self._parts = [ended + 1, self.steps, self.steps - started]
        if not step.tools:
            self._last_kind = -1

    def features(self, siblings: Sequence[Sibling] = ()) -> StepFeatures:
        """What is known now; ``siblings`` are the finished ones of its prompt."""
        steps = self.steps
        ended, started, last_part = self._parts
        shares = [count / steps if steps else math.nan for count in self._kinds]

        def since(at: int) -> float:
            return float(steps - at) if at >= 0 else math.nan

        numbers = [
            _log(self.origin.prompt_tokens),
            float(steps),
            _log(self.done_tokens),
            _log(self.context_tokens),
            _log_or_nan(self._output.mean),
            _log_or_nan(self._output.recent),
            _log_or_nan(self._output.last),
            _log_or_nan(self._output.largest),
            _log_or_nan(self._output.recent) - _log_or_nan(self._output.mean),
            self._output.log_spread,
            _log_or_nan(self._input.mean),
            _log_or_nan(self._input.recent),
            _log_or_nan(self._input.last),
            _log_or_nan(self._input.largest),
            self.done_tokens / max(1, self.done_tokens + self._input.total),
            _log(self.seconds) if self._call.count else math.nan,
            _log_or_nan(self._gap.recent),
            _log_or_nan(self._gap.mean),
            _log_or_nan(self._gap.last),
            _log_or_nan(self._gap.largest),
            _log_or_nan(self._call.mean),
            float(self._errors) if self._errors_known else math.nan,
            self._errors / self._errors_known if self._errors_known else math.nan,
            self._recent_errors if self._errors_known else math.nan,
            since(self._error_at),
            float(self._compactions),
            float(steps - self._compacted_at),
            float(len(self._tools)),
            float(self._tool_run),
            float(self._no_tool),
            since(self._no_tool_at),
            since(self._long_at),
            float(self._many_tools),
            float(ended),
            float(steps - started),
            _log(started / ended) if ended else math.nan,
            _log(last_part) if ended else math.nan,
            *shares,
            *(self._recent_kinds if steps else [math.nan] * len(TOOL_KINDS)),
            *(since(at) for at in self._kind_at),
            float(self._last_kind),
            *self._cues.numbers(steps),
            *sibling_features(siblings, self.done_tokens, steps),
        ]
        return StepFeatures(
            origin=self.origin,
            steps=steps,
            done_tokens=self.done_tokens,
            numbers=np.asarray(numbers, dtype=np.float64),
            siblings=tuple(siblings),
            words=self._cues.words(),
            said=self._cues.said(),
            text=self._cues.recent_text(),
        )
