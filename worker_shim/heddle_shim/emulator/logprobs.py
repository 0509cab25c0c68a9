"""Plausible log-probabilities: made up from token and place, the same every time, the chosen token always
the likeliest.
"""

from dataclasses import dataclass
from typing import Any

from heddle_shim.emulator.answer import Answer
from heddle_shim.emulator.tokens import WORDS, piece_of_id, unpack


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with the alternatives the model did not take; ``top`` starts with the token itself."""

    token: int
    text: str
    logprob: float
    top: list[tuple[str, float]]


def token_logprobs(answer: Answer, start: int, end: int, alternatives: int) -> list[TokenLogprob]:
    """Log-probabilities of the tokens from ``start`` to ``end`` of an answer."""
    ids = unpack(answer.tokens)
    found: list[TokenLogprob] = []
    for place in range(start, min(end, len(ids))):
        token = ids[place]
        mixed = (token * 2654435761 + place * 40503) & 0xFFFFFFFF
        logprob = -0.001 - (mixed % 1000) / 1500
        text = piece_of_id(token).decode("utf-8", "replace")
        top = [(text, logprob)]
        for rank in range(1, alternatives):
            top.append((" " + WORDS[(mixed + rank * 7919) % len(WORDS)], logprob - 1.5 - rank / 4))
        found.append(TokenLogprob(token, text, round(logprob, 6), top[:alternatives]))
    return found


def chat_logprobs(found: list[TokenLogprob]) -> dict[str, Any]:
    """As ``choices[].logprobs`` of chat completions."""

    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "bytes": list(text.encode()), "logprob": logprob}

    return {
        "content": [
            {**entry(one.text, one.logprob), "top_logprobs": [entry(*other) for other in one.top]}
            for one in found
        ]
    }


def completion_logprobs(found: list[TokenLogprob], offset: int) -> dict[str, Any]:
    """As ``choices[].logprobs`` of completions; ``offset`` is where the first token starts in the text."""
    offsets: list[int] = []
    for one in found:
        offsets.append(offset)
        offset += len(one.text)
    return {
        "tokens": [one.text for one in found],
        "token_logprobs": [one.logprob for one in found],
        "top_logprobs": [dict(one.top) for one in found],
        "text_offset": offsets,
    }


def native_logprobs(found: list[TokenLogprob]) -> dict[str, Any]:
    """As the fields of /generate's meta_info."""
    return {
        "output_token_logprobs": [[one.logprob, one.token, None] for one in found],
        "output_top_logprobs": [[[logprob, None, text] for text, logprob in one.top] for one in found],
        "input_token_logprobs": [],
        "input_top_logprobs": [],
    }
