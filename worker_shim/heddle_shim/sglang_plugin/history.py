"""Token ids of requests that ended, by request id: how a trajectory's KV is found without its tokens."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOKENS = 8_000_000
"""Bound of what is remembered. The ids are the engine's own arrays, 8 bytes a token."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    prompt: Sequence[int]
    output: Sequence[int]
    extra_key: str | None
    cache_salt: str | None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)


class History:
    """The latest requests; the oldest go first."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._requests: OrderedDict[str, EndedRequest] = OrderedDict()
        self._tokens = 0

    def remember(self, rid: str, ended: EndedRequest) -> None:
        self.forget(rid)
        self._requests[rid] = ended
        self._tokens += ended.length
        while self._tokens > self._max_tokens:
            _, oldest = self._requests.popitem(last=False)
            self._tokens -= oldest.length

    def find(self, rid: str) -> EndedRequest | None:
        return self._requests.get(rid)

    def forget(self, rid: str) -> None:
        known = self._requests.pop(rid, None)
        if known is not None:
            self._tokens -= known.length
