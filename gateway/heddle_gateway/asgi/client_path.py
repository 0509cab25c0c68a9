"""Takes identity prefixes and needless slashes off a path, in place.

``/t/{id}/v1/chat/completions/`` is served as ``/v1/chat/completions``; a redirect would lose the body or the
key in many clients. A base_url that ends in a slash makes ``//v1/chat/completions`` in some.

Invariant: only what agents call can stand behind a prefix, so no prefix reaches an operators' route.
"""

import re
from collections.abc import Callable
from typing import Final

from heddle_gateway.asgi.access import AGENT_PATHS, is_agents_path

_SLASHES: Final = re.compile("/{2,}")


def route_path(path: str, rest_of: Callable[[str], str]) -> str:
    """The path to route by. ``rest_of``: what an identity prefix leaves; the path itself where there is
    none.
    """
    if path in AGENT_PATHS:
        return path
    tidy = _SLASHES.sub("/", path).rstrip("/") or "/"
    if tidy in AGENT_PATHS:
        return tidy
    rest = rest_of(tidy)
    if is_agents_path(rest):
        return rest
    # An operator's path may end in a trajectory id, where doubled slashes mean something.
    return path.rstrip("/") or "/"
