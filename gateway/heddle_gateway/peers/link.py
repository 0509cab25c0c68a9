"""One connection between two gateways.

Invariants: frames leave in the order they were sent, all those of one turn of the event loop in one write;
each side hears of the other within `LinkTuning.silent_s` or the link is lost; it is lost once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from heddle_gateway.peers.frames import MAX_FRAME, BadFrame, Frame, FrameReader, written

log = logging.getLogger(__name__)

PING: Final = "ping"
IS_DETOUR: Final = "heddle_detour"
"""Of `asyncio.BaseTransport.get_extra_info`: what is sent arrives later than by a connection."""


@dataclass(frozen=True, slots=True)
class LinkTuning:
    """``ping_s``: a side that has nothing to say says so this often. ``silent_s``: then the other is gone.
    ``max_unsent``: bytes; a peer that has so many to read and reads them no faster than more come is as good
    as gone. One frame may be longer: it is judged by what lay there before it.
    """

    ping_s: float = 0.3
    silent_s: float = 1.5
    max_unsent: int = 256 * 1024 * 1024


class Link(asyncio.Protocol):
    """``on_frame`` may raise BadFrame (also as KeyError, TypeError or ValueError of a head that lacks
    something): then the link is closed. ``on_lost`` is called once, from the event loop. ``max_frame``:
    longest frame from the other, until it is `known`.
    """

    def __init__(
        self,
        on_frame: Callable[["Link", Frame], None],
        on_lost: Callable[["Link"], None],
        tuning: LinkTuning | None = None,
        *,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._tuning = tuning or LinkTuning()
        self._frames = FrameReader(max_frame)
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._said_at = 0.0
        self._unwanted = False
        """Closed before it was up."""
        self.is_up = False
        self.is_detour = False

    def send(self, kind: str, blob: bytes = b"", /, **head: Any) -> None:
        """Nothing where the link is lost: what must not be lost is kept by the sender."""
        if not self.is_up:
            return
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(written(kind, blob, **head))

    def known(self) -> None:
        """The other has shown who it is: its frames may be of any size."""
        self._frames.limit = MAX_FRAME

    def close(self) -> None:
        """What was sent still leaves."""
        if self._transport is None:
            self._unwanted = True
        elif self.is_up:
            self.flush()
            self._transport.close()
            self._lose()

    # ---------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        # uvloop's transports are no asyncio.Transport by name.
        self._transport = cast(asyncio.Transport, transport)
        if self._unwanted:
            self._transport.close()
            return
        self._heard_at = self._said_at = self._loop.time()
        self.is_up = True
        self.is_detour = bool(transport.get_extra_info(IS_DETOUR))
        self._timer = self._loop.call_later(self._tuning.ping_s, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for frame in self._frames.feed(data):
                if frame.kind != PING and self.is_up:
                    self._on_frame(self, frame)
        except (BadFrame, KeyError, TypeError, ValueError) as error:
            log.warning("a link to another gateway is closed: %s: %s", type(error).__name__, error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    # ---------------------------------------------------------------- inside

    def flush(self) -> None:
        """What was sent leaves now."""
        if self._unsent and self._transport is not None and self.is_up:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._said_at = self._loop.time()
            if self._transport.get_write_buffer_size() > self._tuning.max_unsent:
                self._abort("it reads nothing")
                return
            self._transport.write(data)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._heard_at > self._tuning.silent_s:
            self._abort(f"silent for {now - self._heard_at:.1f} s")
            return
        if now - self._said_at >= self._tuning.ping_s / 2:
            self.send(PING)
        self._timer = self._loop.call_later(self._tuning.ping_s, self._look)

    def _abort(self, why: str) -> None:
        log.warning("a link to another gateway is given up: %s", why)
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def _lose(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._on_lost(self)
