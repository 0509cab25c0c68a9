"""A tokeniser without a vocabulary file: every piece of text has an id by arithmetic, and every id its piece.

The rule, which clients that must hit exact token counts may rely on:

* A run of one to four letters is one token, the first letter in either case, the others lower-case,
  together with one space before it if there is one. A longer run is cut from the left ("function" is
  "func", "tion").
* A run of one to three digits, with one space before it, is one token.
* Any other byte of the UTF-8 text is one token.

So n words of one to four lower-case letters joined by single spaces are exactly n tokens.

Invariants: ``decode(encode(text)) == text`` for every text. Text joined from generated words encodes to the
ids it was generated from. Appending to a text changes at most its last token. Special ids never come out of
``encode``.

Token sequences are ``bytes`` of native unsigned 32-bit ids: they join, compare and hash at C speed, which
is what the prefix tree and 50,000-token histories need. ``len(tokens) // ID_BYTES`` is the count.
"""

import random
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from itertools import product
from typing import Final

ID_BYTES: Final = 4


class Special(IntEnum):
    """Ids that no text encodes to. ``END`` closes every message and is the model's end-of-turn token."""

    START = 1
    END = 2
    SYSTEM = 3
    USER = 4
    ASSISTANT = 5
    TOOL = 6
    OTHER_ROLE = 7
    CALL = 8
    CALL_ARGUMENTS = 9
    CALL_END = 10
    TOOLS = 11
    NAME = 12


_BYTE_BASE: Final = 32
_DIGITS_BASE: Final = _BYTE_BASE + 256
_DIGIT_RUNS: Final = 10 + 100 + 1000
_WORDS_BASE: Final = _DIGITS_BASE + 2 * _DIGIT_RUNS
_WORD_RUNS: Final = 26 + 26**2 + 26**3 + 26**4
# Index of the first run of each length, for digits and for letters.
_DIGIT_OFFSETS: Final = (0, 0, 10, 110)
_WORD_OFFSETS: Final = (0, 0, 26, 26 + 26**2, 26 + 26**2 + 26**3)

VOCABULARY_SIZE: Final = _WORDS_BASE + 4 * _WORD_RUNS

_PIECE: Final = re.compile(rb" ?[A-Za-z][a-z]{0,3}| ?[0-9]{1,3}|.", re.DOTALL)


def _id_of_piece(piece: bytes) -> int:
    body = piece[1:] if len(piece) > 1 and piece[0] == 0x20 else piece
    spaced = len(body) != len(piece)
    first = body[0]
    if 0x30 <= first <= 0x39:
        return _DIGITS_BASE + spaced * _DIGIT_RUNS + _DIGIT_OFFSETS[len(body)] + int(body)
    lowered = body.lower()
    if 0x61 <= lowered[0] <= 0x7A:
        index = 0
        for letter in lowered:
            index = index * 26 + letter - 0x61
        case = 0 if first >= 0x61 else 1
        return _WORDS_BASE + (2 * spaced + case) * _WORD_RUNS + _WORD_OFFSETS[len(body)] + index
    return _BYTE_BASE + first


def piece_of_id(token: int) -> bytes:
    """UTF-8 bytes of one id; empty for special ids, ``ValueError`` outside the vocabulary."""
    if token < 0 or token >= VOCABULARY_SIZE:
        raise ValueError(f"token id {token} is outside the vocabulary of {VOCABULARY_SIZE}")
    if token < _BYTE_BASE:
        return b""
    if token < _DIGITS_BASE:
        return bytes((token - _BYTE_BASE,))
    if token < _WORDS_BASE:
        spaced, index = divmod(token - _DIGITS_BASE, _DIGIT_RUNS)
        width = 1 if index < 10 else 2 if index < 110 else 3
        return b" " * spaced + b"%0*d" % (width, index - _DIGIT_OFFSETS[width])
    flags, index = divmod(token - _WORDS_BASE, _WORD_RUNS)
    width = 4
    while index < _WORD_OFFSETS[width]:
        width -= 1
    index -= _WORD_OFFSETS[width]
    letters = bytearray(width)
    for place in range(width - 1, -1, -1):
        index, letter = divmod(index, 26)
        letters[place] = 0x61 + letter
    if flags & 1:
        letters[0] -= 0x20
    return b" " * (flags >> 1) + bytes(letters)


class _PieceTable(dict[bytes, int]):
    """Ids of pieces already seen. Forgotten as a whole when full: ids are arithmetic, so nothing is lost."""

    _LIMIT: Final = 200_000

    def __missing__(self, piece: bytes) -> int:
        if len(self) >= self._LIMIT:
            self.clear()
        token = self[piece] = _id_of_piece(piece)
        return token


_PIECES: Final = _PieceTable()


def _encode_by_piece(text: str) -> bytes:
    pieces = _PIECE.findall(text.encode("utf-8", "surrogatepass"))
    return array("I", map(_PIECES.__getitem__, pieces)).tobytes()


class _SpacedTable(dict[str, bytes]):
    """Ids of what stands between two spaces, with the space before it: no token reaches over a space but at
    its own start. Looking whole words up takes half of the time that matching pieces takes.
    """

    _LIMIT: Final = 100_000
    _LONGEST: Final = 32
    """Longer ones hardly come again."""

    def __missing__(self, word: str) -> bytes:
        tokens = _encode_by_piece(" " + word)
        if len(word) <= self._LONGEST:
            if len(self) >= self._LIMIT:
                self.clear()
            self[word] = tokens
        return tokens


_SPACED: Final = _SpacedTable()


def encode(text: str) -> bytes:
    """Token ids of a text. Lone surrogates, which JSON can carry, are kept as their three bytes."""
    first, *words = text.split(" ")
    return _encode_by_piece(first) + b"".join(map(_SPACED.__getitem__, words))


def count(tokens: bytes) -> int:
    """Number of ids in a token sequence."""
    return len(tokens) // ID_BYTES


def pack(ids: Iterable[int]) -> bytes:
    """Token sequence of a list of ids."""
    return array("I", ids).tobytes()


def unpack(tokens: bytes) -> list[int]:
    """List of ids of a token sequence."""
    return memoryview(tokens).cast("I").tolist()


def decode(tokens: bytes) -> str:
    """Text of a token sequence, special ids left out; broken UTF-8 becomes U+FFFD as in SGLang's
    detokeniser.
    """
    raw = b"".join(map(piece_of_id, unpack(tokens)))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


class TokenMemo:
    """Encodings of recent texts, least recently used first out, bounded by their total tokens.

    A chat request repeats its whole history; with the memo only the new messages are tokenised.
    """

    def __init__(self, limit_tokens: int = 8_000_000) -> None:
        self._limit = limit_tokens
        self._held = 0
        self._by_text: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_text)

    def encode(self, text: str) -> bytes:
        """As ``encode``; the cost of a known text is one lookup."""
        known = self._by_text.get(text)
        if known is not None:
            self._by_text.move_to_end(text)
            return known
        tokens = encode(text)
        self._remember(text, tokens)
        return tokens

    def learn(self, text: str, tokens: bytes) -> None:
        """``tokens`` is what ``text`` encodes to: an answer comes back with the next request."""
        if text not in self._by_text:
            self._remember(text, tokens)

    def _remember(self, text: str, tokens: bytes) -> None:
        # Empty texts count too, or a flood of distinct short ones would not be bounded.
        self._held += count(tokens) + 1
        self._by_text[text] = tokens
        while self._held > self._limit:
            _, dropped = self._by_text.popitem(last=False)
            self._held -= count(dropped) + 1


# Consonant-vowel pairs read well and never spell the few words a log search would trip over.
_SYLLABLES: Final = tuple(c + v for c, v in product("bdfghjklmnprstvwz", "aeiou"))
WORDS: Final = tuple(first + second for first, second in product(_SYLLABLES, _SYLLABLES))
_WORD_BYTES: Final = 5
"""Bytes of text a word and the space before it take."""
_POOL: Final = 1 << 16
"""Words of the pool that answers are cut out of: drawing each word by itself was a seventh of an emulated
worker's processor time."""


@lru_cache(maxsize=1)
def _pool() -> tuple[str, bytes]:
    """Text and ids of the pool, each word with its space; always the same."""
    words = [" " + word for word in random.Random(0).choices(WORDS, k=_POOL)]
    ids = {word: _id_of_piece(word.encode()) for word in set(words)}
    return "".join(words), array("I", map(ids.__getitem__, words)).tobytes()


def pseudo_words(seed: int, length: int, *, leading_space: bool) -> tuple[str, bytes]:
    """``length`` words by ``seed`` (64 bits), as text and as exactly ``length`` token ids: two words of the
    seed's own, then a stretch of the pool from a place that the seed names.

    A longer draw of the same seed starts with the shorter one. Without ``leading_space`` the text starts at
    its first letter, so that clients that strip answers send back the same tokens.
    """
    if length <= 0:
        return "", b""
    # Spread over all bits: seeds that differ in one bit shall not say nearly the same.
    mixed = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    rest, first = divmod(mixed, len(WORDS))
    rest, second = divmod(rest, len(WORDS))
    text, ids = _pool()
    start, more = rest % _POOL, max(0, length - 2)
    if start + more > _POOL:
        times = 1 + (start + more) // _POOL
        text, ids = text * times, ids * times
    own = [" " + WORDS[first], " " + WORDS[second]][:length]
    said = "".join(own) + text[start * _WORD_BYTES : (start + more) * _WORD_BYTES]
    if not leading_space:
        own[0], said = own[0][1:], said[1:]
    return said, encode("".join(own)) + ids[start * ID_BYTES : (start + more) * ID_BYTES]
