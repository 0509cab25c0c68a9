"""The API families of the data path, one row each.

Invariant: a row says everything that differs between them on the byte path; what is the same is written once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from heddle_core import Dialect as DialectName


@dataclass(frozen=True, slots=True)
class Dialect:
    """``path``: what clients call (after identity prefixes) and what the worker is called with.

    ``asks_usage``: its streams give usage only when ``stream_options.include_usage`` is true;
    SGLang's ``/generate`` says ``meta_info`` in every event.
    """

    name: "DialectName"
    path: str
    upstream_path: bytes
    asks_usage: bool


CHAT: Final = Dialect("chat", "/v1/chat/completions", b"/v1/chat/completions", asks_usage=True)
COMPLETIONS: Final = Dialect("completions", "/v1/completions", b"/v1/completions", asks_usage=True)
GENERATE: Final = Dialect("generate", "/generate", b"/generate", asks_usage=False)

DIALECTS: Final[tuple[Dialect, ...]] = (CHAT, COMPLETIONS, GENERATE)
BY_PATH: Final[Mapping[str, Dialect]] = {dialect.path: dialect for dialect in DIALECTS}
