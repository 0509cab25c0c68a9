"""Which headers cross the gateway, in both directions.

Invariant: the caller's credentials, anything that could command the engine (``x-override-*``) or pretend to
come from the gateway (``x-heddle-*``), and hop-by-hop headers never reach a worker.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

# Known to be of use to an engine or to tracing. content-type is always sent, see forward_block.
_REQUEST_ALLOWED: Final = frozenset(
    {
        b"accept",
        b"accept-language",
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
    }
)
# x- headers that are credentials, are ours to set, or say how the request reached *us*.
_REQUEST_DENIED_X: Final = frozenset(
    {
        b"x-admin-key",
        b"x-amzn-trace-id",
        b"x-api-key",
        b"x-body-compressed",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-goog-api-key",
        b"x-real-ip",
        b"x-request-id",
        b"x-smg-target-worker",
    }
)
_REQUEST_DENIED_PREFIXES: Final = (b"x-override-", b"x-heddle-")
_RESPONSE_DENIED: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"server",
        b"set-cookie",
        b"strict-transport-security",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
_RESPONSE_DENIED_PREFIXES: Final = (b"x-heddle-", b"access-control-")


@lru_cache(maxsize=1024)
def crosses_to_worker(name: bytes) -> bool:
    """Whether a request header (lower case) of the client goes to the worker. Clients send few names."""
    if name in _REQUEST_ALLOWED:
        return True
    return (
        name.startswith(b"x-")
        and name not in _REQUEST_DENIED_X
        and not name.startswith(_REQUEST_DENIED_PREFIXES)
    )


def forward_block(headers: Iterable[tuple[bytes, bytes]], request_id: bytes) -> bytes:
    """The header lines for the worker: what crosses, then ours. Values come from a parser that refuses CR
    and LF.

    ``content-type`` is kept where it says JSON and is set otherwise: SGLang answers 415 without it.
    Connection-nominated headers (RFC 9110, 7.6.1) are hop-by-hop as well.
    """
    lines: list[bytes] = []
    content_type = b"application/json"
    nominated: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"content-type":
            if value[:16].lower().startswith(b"application/json"):
                content_type = value
        elif name == b"connection":
            nominated = frozenset(part.strip().lower() for part in value.split(b","))
        elif crosses_to_worker(name):
            lines += (name, b": ", value, b"\r\n")
    if nominated:
        lines = [
            part
            for at in range(0, len(lines), 4)
            if lines[at] not in nominated
            for part in lines[at : at + 4]
        ]
    lines += (
        b"content-type: ",
        content_type,
        b"\r\naccept-encoding: identity\r\nx-request-id: ",
        request_id,
        b"\r\n",
    )
    return b"".join(lines)


@lru_cache(maxsize=1024)
def crosses_to_client(name: bytes) -> bool:
    """Whether a response header (lower case) of the worker goes to the client."""
    return name not in _RESPONSE_DENIED and not name.startswith(_RESPONSE_DENIED_PREFIXES)


def answer_lines(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes] = frozenset()) -> bytes:
    """The worker's response headers that go to the client, as lines. ``without``: some that do not this
    time.
    """
    lines: list[bytes] = []
    for name, value in headers:
        if crosses_to_client(name) and name not in without:
            lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


@lru_cache(maxsize=1024)
def worker_line(name: str) -> bytes:
    """Which worker answered. An operator's name may be anything; what no header can hold becomes a "?"."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return b"x-heddle-worker: %b\r\n" % text.encode("latin-1", "replace")


def retry_after_of(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds of a worker's ``retry-after``; 0 without one, or where it is a date."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value[:6])
    return 0.0
