"""Paths that carry a trajectory id before the API's own path.

The path is the only carrier that every client supports unmodified: it is part of ``base_url``. Ids may
contain slashes (rLLM: ``harbor/hello-world:0``), so a prefix ends at the first ``/v1`` or API path that
follows.
"""

import re
from dataclasses import dataclass
from typing import Final

# Routes of engines' own, at the root of a server.
_ROOT: Final = ("/generate", "/inference/v1/generate", "/tokenize", "/detokenize")
# What follows the id when a client's base_url lacks /v1 (the openai SDK adds only these).
_BARE: Final = r"/(?:chat/completions|completions|responses|messages|embeddings|models)"
# Where an API's own path begins, seen from its first slash on; it goes on to the end.
_API: Final = rf"(?:(?:/v1|{_BARE})(?=/|\Z)|(?:{'|'.join(_ROOT)})\Z)"
_FIRST_API: Final = re.compile(_API)
_TAIL: Final = rf"(?P<rest>{_API}.*)\Z"


@dataclass(frozen=True, slots=True)
class TaggedPath:
    """A path taken apart. ``rest``: the API's own path. ``source``: the rule, None where there is no id."""

    rest: str
    source: str | None = None
    trajectory_id: str | None = None


_PLAIN: Final = {
    **{path: TaggedPath(path) for path in ("/v1/chat/completions", "/v1/completions", *_ROOT)},
    # A base_url without /v1.
    **{
        path: TaggedPath(f"/v1{path}")
        for path in ("/chat/completions", "/completions", "/messages", "/responses", "/models")
    },
}
# Heddle; then rLLM, miles, uni-agent. The id ends where the API's own path begins.
_BEFORE_IDS: Final = (("url", "/t/"), ("url-sessions", "/sessions/"))
_PATTERNS: Final = (
    # Agent Lightning 1.0: an attempt is an agent run of its own.
    (
        "url-rollout",
        re.compile(
            r"/proxy/rollout/(?P<id>[^/]+)/attempt/(?P<attempt>[^/]+)/mode/[^/]+/openai(?P<rest>/v1(?:/.*)?)\Z"
        ),
    ),
    # Agent Lightning 0.x.
    ("url-rollout", re.compile(rf"(?:/proxy)?/rollout/(?P<id>[^/]+)/attempt/(?P<attempt>[^/]+){_TAIL}")),
    # verl's proposal: the id alone. Common API roots are no ids.
    (
        "url-prefix",
        re.compile(
            r"/(?!(?:openai|api|admin|proxy|v1)/)(?P<id>[^/]+)(?P<rest>/v1/(?:chat/completions|completions|responses|messages(?:/count_tokens)?))\Z"
        ),
    ),
)


def split_path(path: str) -> TaggedPath:
    """``path``: percent-decoded, as ASGI's ``scope["path"]``. Takes time in proportion to its length: anybody
    may send one, before a key is looked at.
    """
    plain = _PLAIN.get(path)
    if plain is not None:
        return plain
    if path.startswith("/v1/"):
        return TaggedPath(path)
    for source, before in _BEFORE_IDS:
        if path.startswith(before):
            api = _FIRST_API.search(path, len(before))
            if api is not None:
                return _tagged(source, path[len(before) : api.start()], path[api.start() :])
    for source, pattern in _PATTERNS:
        match = pattern.match(path)
        if match is not None:
            found = match.groupdict()
            return _tagged(source, found["id"], found["rest"], found.get("attempt"))
    return TaggedPath(path)


def _tagged(source: str, named: str, rest: str, attempt: str | None = None) -> TaggedPath:
    # A base_url that ends in a slash doubles the one behind the id.
    named = named.rstrip("/")
    if not rest.startswith("/v1") and rest not in _ROOT:
        rest = f"/v1{rest}"
    if not named:
        # A variable that was not set: no id, or all such agents would be one.
        return TaggedPath(rest)
    return TaggedPath(rest, source, named if attempt is None else f"{named}/{attempt}")
