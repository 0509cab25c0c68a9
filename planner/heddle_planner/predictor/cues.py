"""Signs in texts and tool names of how far an agent is: plan items, errors, words of ending; hashed words of
late and of all that was said so far.
"""

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

TOOL_KINDS: Final = ("run", "read", "search", "edit", "plan", "agent", "person", "finish", "other")
_KIND_WORDS: Final = (
    ("finish", ("finish", "submit", "complete_task", "final_answer", "done_task", "end_task", "transfer")),
    ("plan", ("todo", "plan", "think", "note", "memory")),
    ("agent", ("agent", "task", "delegate", "spawn")),
    ("person", ("user", "respond", "ask", "human", "message", "reply")),
    ("search", ("search", "grep", "glob", "find", "lookup", "list", "query", "browse")),
    ("edit", ("edit", "write", "replace", "patch", "insert", "create", "update", "book", "cancel", "delete")),
    ("read", ("read", "view", "open", "cat", "get", "fetch", "show", "click", "scroll")),
    ("run", ("bash", "run", "exec", "shell", "python", "terminal", "test", "command", "calc", "compute")),
)
"""The first kind one of whose words is in a tool's name is its kind."""

MOST_TEXT: Final = 4_000
"""Characters of a text that are looked at: its beginning and its end, in equal parts."""
MOST_WORDS: Final = 256
WORD_BUCKETS: Final = 4096

_PATTERNS: Final = {
    "ending": re.compile(
        r"\b(final(ly)?|in summary|summary|complet(e|ed)|finished|all (tests|checks) pass|successfully|"
        r"anything else|conclusion|submit|\bdone\b)",
        re.I,
    ),
    "starting": re.compile(r"\b(let me start|first|begin|explor|look at|understand|investigat)", re.I),
    "checking": re.compile(r"\b(verify|double[- ]check|re-?run|test|review|confirm|make sure)", re.I),
    "trouble": re.compile(
        r"(traceback|error|exception|failed|failure|not found|cannot|unable|permission denied|no such file)",
        re.I,
    ),
    "retrying": re.compile(
        r"\b(try again|instead|another approach|wait|hmm|actually|still|unfortunately)", re.I
    ),
    "items": re.compile(r"^\s*(?:[-*]|\d+[.)])\s", re.M),
    "question": re.compile(r"\?\s*(?:$|\n)"),
    "code": re.compile(r"```|\bdef |\bclass |\bimport |[{};]$", re.M),
}
_OBSERVED: Final = ("ending", "trouble", "question")

PROMPT_TEXT_FEATURES: Final = ("log_prompt_text", "prompt_items", "prompt_code", "prompt_questions")
CUE_FEATURES: Final = (
    *(f"cue_{name}" for name in _PATTERNS),
    *(f"recent_cue_{name}" for name in _PATTERNS),
    *(f"observed_{name}" for name in _OBSERVED),
    *(f"recent_observed_{name}" for name in _OBSERVED),
    "log_text",
    "log_observation",
    *PROMPT_TEXT_FEATURES,
)


def tool_kind(tool: str) -> int:
    """Index of a tool's kind in `TOOL_KINDS`, by words in its name."""
    name = tool.lower()
    for kind, words in _KIND_WORDS:
        if any(word in name for word in words):
            return TOOL_KINDS.index(kind)
    return TOOL_KINDS.index("other")


def cut_middle(text: str, most: int = MOST_TEXT) -> str:
    """The beginning and the end of a text that is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most // 2] + "\n" + text[-(most // 2) :]


_WORD: Final = re.compile(r"[A-Za-z_]{2,}|\d+")


def words_of(text: str) -> list[str]:
    """The last `MOST_WORDS` words, in order; numbers are all alike."""
    return ["0" if word[0].isdigit() else word.lower() for word in _WORD.findall(text)][-MOST_WORDS:]


def hashed_words(words: Sequence[str], mark: str) -> list[int]:
    """Buckets of words and neighbouring pairs. ``mark`` keeps sources apart."""
    terms = {f"{mark}{word}" for word in words}
    terms.update(f"{mark}{a} {b}" for a, b in pairwise(words))
    return [_bucket(term) for term in terms]


def _bucket(term: str) -> int:
    return zlib.crc32(term.encode()) % WORD_BUCKETS


class SaidSoFar:
    """Which words an agent has written and which tools it has called: one bit a bucket, however long it
    runs.
    """

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = bytearray(WORD_BUCKETS // 8)

    def add(self, terms: Iterable[str]) -> None:
        """Words or names; once or often is the same."""
        for term in set(terms):
            bucket = _bucket(term)
            self._bits[bucket >> 3] |= 1 << (bucket & 7)

    def buckets(self) -> NDArray[np.uint16] | None:
        """In ascending order; None while there are none."""
        bits = np.unpackbits(np.frombuffer(self._bits, np.uint8), bitorder="little")
        found = np.flatnonzero(bits)
        return found.astype(np.uint16) if len(found) else None


_RECENT: Final = 0.35


def _no_words() -> NDArray[np.uint16]:
    return np.empty(0, dtype=np.uint16)


@dataclass(slots=True)
class TextCues:
    """Running signs of one trajectory. All NaN where no text was seen."""

    _last: list[float] = field(default_factory=lambda: [math.nan] * len(_PATTERNS))
    _recent: list[float] = field(default_factory=lambda: [math.nan] * len(_PATTERNS))
    _seen_last: list[float] = field(default_factory=lambda: [math.nan] * len(_OBSERVED))
    _seen_recent: list[float] = field(default_factory=lambda: [math.nan] * len(_OBSERVED))
    _text: str | None = None
    _observation: str | None = None
    _prompt: str | None = None
    _prompt_words: NDArray[np.uint16] = field(default_factory=_no_words)
    _words: NDArray[np.uint16] = field(default_factory=_no_words)
    _said: SaidSoFar = field(default_factory=SaidSoFar)
    _prompt_numbers: list[float] = field(default_factory=lambda: [math.nan] * 4)

    def start(self, prompt: str | None) -> None:
        """Takes the prompt."""
        if prompt is None:
            return
        self._prompt = cut_middle(prompt)
        self._prompt_words = np.array(hashed_words(words_of(self._prompt), "#"), dtype=np.uint16)
        self._prompt_numbers = [
            math.log1p(len(prompt)),
            float(len(_PATTERNS["items"].findall(prompt))),
            float(prompt.count("```")),
            float(prompt.count("?")),
        ]

    def observe(self, text: str | None, observation: str | None, tools: Sequence[str] = ()) -> None:
        """Takes a step's output and the tools that it calls, and what its predecessor's tool said."""
        self._text = cut_middle(text) if text is not None else None
        self._observation = cut_middle(observation) if observation is not None else None
        found: list[int] = []
        self._said.add(f"@{tool}" for tool in tools)
        if self._text is not None:
            words = words_of(self._text)
            found += hashed_words(words, ">")
            self._said.add(words)
        if self._observation is not None:
            found += hashed_words(words_of(self._observation), "<")
        self._words = np.array(found, dtype=np.uint16)
        _follow(self._last, self._recent, tuple(_PATTERNS), self._text)
        _follow(self._seen_last, self._seen_recent, _OBSERVED, self._observation)

    def numbers(self, steps: int) -> list[float]:
        """For `CUE_FEATURES`."""
        return [
            *self._last,
            *self._recent,
            *self._seen_last,
            *self._seen_recent,
            math.log1p(len(self._text)) if self._text is not None else math.nan,
            math.log1p(len(self._observation)) if self._observation is not None else math.nan,
            *self._prompt_numbers,
        ]

    def words(self) -> NDArray[np.uint16] | None:
        """Buckets of the prompt, the last output and the last observation. None without text."""
        if not len(self._words) and not len(self._prompt_words):
            return None
        # Each bucket once and in order, in a quarter of the time that sorting takes.
        present = np.zeros(WORD_BUCKETS, dtype=np.bool_)
        present[self._words] = True
        present[self._prompt_words] = True
        return np.flatnonzero(present).astype(np.uint16)

    def said(self) -> NDArray[np.uint16] | None:
        """Buckets of all words written and all tools called so far. None before the first."""
        return self._said.buckets()

    def recent_text(self) -> str | None:
        """The last observation and output, for models that read."""
        parts = [part for part in (self._observation, self._text) if part]
        if not parts and self._prompt:
            return self._prompt
        return "\n".join(parts) or None


def _follow(last: list[float], recent: list[float], names: tuple[str, ...], text: str | None) -> None:
    for index, name in enumerate(names):
        if text is None:
            last[index] = math.nan
            continue
        found = min(20, sum(1 for _ in _PATTERNS[name].finditer(text)))
        last[index] = float(found)
        before = recent[index]
        recent[index] = float(found) if math.isnan(before) else before + _RECENT * (found - before)
