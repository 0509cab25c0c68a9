"""The API families of the data path, one row each.

Invariant: a row says everything that differs between them on the byte path; what is the same is written once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle_gateway.dialects.errors import Shape

if TYPE_CHECKING:
    from heddle_core import Dialect as DialectName


@dataclass(frozen=True, slots=True)
class Dialect:
    """``path``: what clients call (after identity prefixes) and what the worker is called with.

    ``asks_usage``: its streams give usage only when ``stream_options.include_usage`` is true; the others
    always do. ``named_in_body``: request id and priority are fields of the body; else SGLang reads them in
    ``x-override-*`` headers. ``rid_member``: the field in which a client names its request.
    ``stores_answers``: a worker keeps its answers, and a later request may go on from one. ``opens_early``:
    its streams begin before there is a token, and with them the status 200, so that a refusal can only come
    as an event. ``errors``: how its clients expect errors.
    """

    name: "DialectName"
    path: str
    upstream_path: bytes
    asks_usage: bool = False
    named_in_body: bool = True
    rid_member: str = "rid"
    stores_answers: bool = False
    opens_early: bool = False
    errors: Shape = Shape.OPENAI


CHAT: Final = Dialect("chat", "/v1/chat/completions", b"/v1/chat/completions", asks_usage=True)
COMPLETIONS: Final = Dialect("completions", "/v1/completions", b"/v1/completions", asks_usage=True)
GENERATE: Final = Dialect("generate", "/generate", b"/generate")
TOKENS: Final = Dialect(
    "tokens", "/inference/v1/generate", b"/inference/v1/generate", rid_member="request_id"
)
MESSAGES: Final = Dialect(
    "messages",
    "/v1/messages",
    b"/v1/messages",
    named_in_body=False,
    opens_early=True,
    errors=Shape.ANTHROPIC,
)
RESPONSES: Final = Dialect(
    "responses",
    "/v1/responses",
    b"/v1/responses",
    rid_member="request_id",
    stores_answers=True,
    opens_early=True,
    errors=Shape.RESPONSES,
)

DIALECTS: Final[tuple[Dialect, ...]] = (CHAT, COMPLETIONS, GENERATE, TOKENS, MESSAGES, RESPONSES)
BY_PATH: Final[Mapping[str, Dialect]] = {dialect.path: dialect for dialect in DIALECTS}
