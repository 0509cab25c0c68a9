"""Text of a given number of tokens.

The format, which the emulated engine's tokeniser keeps too: a run of one to four letters (the first in either
case, the others lower-case) is one token together with one space before it; a run of one to three digits
likewise; any other byte is one token. A chat message costs three tokens beside its content, the opening of
the answer two, and a tools array three beside its compact JSON. So n words of four letters joined by spaces
are n tokens. Real tokenisers differ by some per cent; then the server's usage is what counts.
"""

import random
import re
from itertools import product
from typing import Final

MESSAGE_TOKENS: Final = 3
ANSWER_OPENING_TOKENS: Final = 2
TOOLS_TOKENS: Final = 3

_TOKEN: Final = re.compile(rb" ?[A-Za-z][a-z]{0,3}| ?[0-9]{1,3}|.", re.DOTALL)
_SYLLABLES: Final = tuple("".join(pair) for pair in product("bcdfghklmnprstvz", "aeiou"))
_WORDS: Final = tuple("".join(pair) for pair in product(_SYLLABLES, _SYLLABLES))


def count_tokens(text: str) -> int:
    """Tokens of a text by the format above."""
    return len(_TOKEN.findall(text.encode()))


def filler(seed: str, tokens: int) -> str:
    """Words of exactly ``tokens`` tokens, always the same for a seed; empty for none."""
    return " ".join(random.Random(seed).choices(_WORDS, k=max(0, tokens)))
