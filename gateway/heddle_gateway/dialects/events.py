"""Where the events of a ``text/event-stream`` end (WHATWG HTML, 9.2.6), without reading what they say."""


def end_of_last_event(data: bytes) -> int:
    """Offset behind the last complete event in ``data``; 0 when none is complete.

    Line ends may be LF, CRLF or CR. Only whole events go to a client, so that an error event can follow any
    of them when the worker is lost.
    """
    if data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return len(data)
    end = 0
    for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        at = data.rfind(blank)
        if at >= 0:
            end = max(end, at + len(blank))
    return end
