"""What the modelled LLM says: how many tokens, which text, which tool calls, and why it stops.

An answer is planned whole when its request arrives. Invariants: the plan's tokens are exactly what the text
tokenises to, so the next step of the trajectory finds their KV; their number is the ``completion_tokens``
the client will see.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from heddle_shim.emulator.chat import CALL, CALL_ARGUMENTS, CALL_END, END
from heddle_shim.emulator.json_answer import JsonFrame, frame_for
from heddle_shim.emulator.tokens import ID_BYTES, Special, count, encode, piece_of_id, pseudo_words, unpack

NATURAL_MEDIAN_TOKENS: Final = 160
NATURAL_SIGMA: Final = 1.0
"""Lognormal of a step's own length: agent steps have a median near 150 tokens and a p99 near ten times
that.
"""
NATURAL_MIN_TOKENS: Final = 8
CALL_SHARE: Final = 0.85
"""Share of natural answers that call a tool when they may."""
TWO_CALLS_SHARE: Final = 0.1
"""Share of natural tool answers that make two calls."""
SPOKEN_SHARE: Final = 0.15
"""Share of a tool answer's tokens that precede the call as text, where there are enough."""


class LengthRule(StrEnum):
    """Who decides how long an answer is."""

    MAX_TOKENS = "max_tokens"
    """``max_tokens`` of the request, exactly; the answer then ends as if by itself. For replaying records."""
    NATURAL = "natural"
    """A seeded draw; ``max_tokens`` only cuts it ("length")."""


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What decides an answer. ``max_tokens`` is already bounded by the context; ``given`` says the client
    set it.
    """

    max_tokens: int
    given: bool
    seed: int
    tools: Sequence[Mapping[str, Any]] = ()
    must_call: bool = False
    several_calls: bool = True
    json_schema: Mapping[str, Any] | None = None
    json_wanted: bool = False
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    leading_space: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str


@dataclass(slots=True)
class Answer:
    """A planned answer: its tokens, and what they mean."""

    tokens: bytes
    content: str
    calls: list[Call]
    finish: Finish
    matched_stop: int | str | None = None
    encoded: list[tuple[str, bytes]] = field(default_factory=list, repr=False)
    """Its texts as the client will send them back, with their tokens; not all need be here."""
    _pieces: list[str] | None = field(default=None, repr=False)

    def pieces(self) -> list[str]:
        """Text each token adds, in order; empty for special ids and for the first bytes of a character."""
        if self._pieces is None:
            self._pieces = _pieces_of(self.tokens)
        return self._pieces


def seed_of(*parts: bytes | str | int | None) -> int:
    """A 64-bit seed from what an answer shall depend on."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
        digest.update(b"\0")
    return int.from_bytes(digest.digest(), "big")


def plan_answer(request: AnswerRequest, rule: LengthRule) -> Answer:
    """Decides the answer to a request."""
    draw = random.Random(request.seed)
    natural = max(
        NATURAL_MIN_TOKENS, round(math.exp(draw.gauss(math.log(NATURAL_MEDIAN_TOKENS), NATURAL_SIGMA)))
    )
    wants_call = bool(request.tools) and (request.must_call or draw.random() < CALL_SHARE)
    calls = 1 + (request.several_calls and draw.random() < TWO_CALLS_SHARE)
    if request.max_tokens <= 0:
        return Answer(b"", "", [], Finish.LENGTH)
    if request.ignore_eos:
        return _spoken(request, request.max_tokens, Finish.LENGTH)
    # A call that has to be made is as long as it has to be, where the length is the answer's own.
    longest = request.max_tokens if request.must_call else natural
    if rule is LengthRule.MAX_TOKENS and request.given:
        length, wants_call, calls = request.max_tokens, bool(request.tools), 1
        longest = length
    elif natural > request.max_tokens:
        return _spoken(request, request.max_tokens, Finish.LENGTH)
    else:
        length = natural
    if request.json_wanted and not (request.tools and request.must_call):
        return _framed(request, length)
    if wants_call and (planned := _calling(request, length, longest, calls, draw)):
        return planned
    if request.must_call:
        # Too few tokens for any call: a real model is cut off inside it.
        return _spoken(request, length, Finish.LENGTH)
    return _spoken(request, length, Finish.STOP)


def _spoken(request: AnswerRequest, length: int, finish: Finish) -> Answer:
    """Plain text; the last token is the end of turn where the answer stops by itself."""
    words = length - 1 if finish is Finish.STOP else length
    text, tokens = pseudo_words(request.seed, words, leading_space=request.leading_space)
    if (cut := _cut_at_stop(text, tokens, request.stop)) is not None:
        return cut
    encoded = [(text, tokens)]
    if finish is Finish.STOP:
        return Answer(tokens + END, text, [], finish, int(Special.END), encoded)
    return Answer(tokens, text, [], finish, encoded=encoded)


def _cut_at_stop(text: str, tokens: bytes, stops: tuple[str, ...]) -> Answer | None:
    """The answer up to the first stop string, if there is one; the token that completes it was still
    generated.
    """
    hits = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not hits:
        return None
    at, stop = min(hits)
    needed = at + len(stop)
    length = made = 0
    for token in unpack(tokens):
        if length >= needed:
            break
        length += len(piece_of_id(token))
        made += 1
    return Answer(tokens[: made * ID_BYTES], text[:at], [], Finish.STOP, stop)


def _framed(request: AnswerRequest, length: int) -> Answer:
    """One JSON document, padded to the length where its schema has an open string."""
    frame = _tokenised(frame_for(request.json_schema))
    # One token is the end of turn.
    padded = _pad(frame, length - 1, request.seed)
    if padded is None:
        smallest = frame.head + (frame.tail or "")
        tokens = encode(smallest)
        if count(tokens) < length:
            return Answer(tokens + END, smallest, [], Finish.STOP, int(Special.END))
        tokens = tokens[: length * ID_BYTES]
        return Answer(tokens, "".join(_pieces_of(tokens)), [], Finish.LENGTH)
    text, tokens = padded
    return Answer(tokens + END, text, [], Finish.STOP, int(Special.END))


@dataclass(frozen=True, slots=True)
class _Frame:
    """A JSON text with room for padding, and its tokens. ``tail`` is None where nothing can be padded."""

    head: str
    tail: str | None
    head_tokens: bytes
    tail_tokens: bytes

    @property
    def bare(self) -> int:
        """Tokens without padding."""
        return count(self.head_tokens) + count(self.tail_tokens)


def _tokenised(frame: JsonFrame) -> _Frame:
    return _Frame(frame.head, frame.tail, encode(frame.head), encode(frame.tail or ""))


@lru_cache(maxsize=1024)
def _frame_of(parameters: str) -> _Frame:
    """Of a tool's parameters, as JSON: an agent offers the same tools with every step. Raises SchemaError."""
    return _tokenised(frame_for(json.loads(parameters)))


def _calling(
    request: AnswerRequest, length: int, longest: int, wanted: int, draw: random.Random
) -> Answer | None:
    """Text and tool calls of exactly ``length`` tokens in all, or of as many up to ``longest`` as one call
    takes; None if that is too few.
    """
    chosen = [draw.choice(request.tools) for _ in range(wanted)]
    names = [str(tool.get("name")) for tool in chosen]
    frames = [_frame_of(json.dumps(tool.get("parameters"))) for tool in chosen]
    overhead = [3 + count(encode(name)) + frame.bare for name, frame in zip(names, frames, strict=True)]
    while len(frames) > 1 and sum(overhead) + 1 > length:
        frames.pop()
        overhead.pop()
    spare = max(length, min(longest, 1 + sum(overhead))) - 1 - sum(overhead)
    if spare < 0:
        return None
    spoken = int(spare * SPOKEN_SHARE)
    if frames[0].tail is None:
        spoken = spare
    text, tokens = pseudo_words(request.seed ^ 1, spoken, leading_space=request.leading_space)
    parts = [tokens]
    encoded = [(text, tokens)]
    calls: list[Call] = []
    padding = spare - spoken
    for name, frame in zip(names, frames, strict=False):
        padded = _pad(frame, frame.bare + padding, request.seed)
        arguments, ids = padded if padded is not None else (frame.head, frame.head_tokens)
        calls.append(Call(name, arguments))
        encoded.append((arguments, ids))
        parts += (CALL, encode(name), CALL_ARGUMENTS, ids, CALL_END)
        padding = 0
    parts.append(END)
    return Answer(b"".join(parts), text, calls, Finish.TOOL_CALLS, encoded=encoded)


def _pad(frame: _Frame, length: int, seed: int) -> tuple[str, bytes] | None:
    """The frame filled to exactly ``length`` tokens; None without an open string or room for it."""
    if frame.tail is None:
        return None
    words = length - frame.bare
    if words < 0:
        return None
    text, ids = pseudo_words(seed, words, leading_space=False)
    return frame.head + text + frame.tail, frame.head_tokens + ids + frame.tail_tokens


def _pieces_of(tokens: bytes) -> list[str]:
    pieces: list[str] = []
    pending = b""
    for token in unpack(tokens):
        pending += piece_of_id(token)
        try:
            pieces.append(pending.decode())
            pending = b""
        except UnicodeDecodeError:
            pieces.append("")
    return pieces
