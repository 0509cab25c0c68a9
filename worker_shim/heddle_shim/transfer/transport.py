"""How pages get from one shim to another. ``tcp`` is built in; others are extras behind this interface."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from heddle_shim.transfer.engine_side import Offer, PageSource


@dataclass(slots=True)
class Progress:
    """How far a push is. Pages count from the first of the prefix."""

    present: int | None = None
    """Pages the target had when it first accepted; None until then."""
    moved: int = 0
    bytes: int = 0
    complete: int = 0
    """Pages of the prefix that are complete at the target; 0 until the push is over."""
    attempts: int = 0
    first_page_at: float | None = None
    """When the first page began to be sent, by the event loop's clock."""


Weigh = Callable[[int], None]
"""Called with how many pages the target lacks; raises TransferFault where they are not to be sent."""


class Transport(Protocol):
    """The sending side."""

    @property
    def name(self) -> str:
        """Key of ``Handshake.transports``."""

    async def push(
        self, address: str, offer: Offer, source: PageSource, progress: Progress, weigh: Weigh | None = None
    ) -> None:
        """Brings the offer's pages to the receiver at ``address``, over broken connections too. Cancelling
        it tells the receiver. ``weigh`` is asked once, when the receiver has first accepted and before any
        page is sent.

        Raises:
            TransferFault: it was refused, ``weigh`` raised it, or it could not be finished; what had
                arrived stays usable.
        """


class Receiver(Protocol):
    """The receiving side."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """What a sender connects to."""

    @property
    def arriving(self) -> int:
        """Offers accepted and not over."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Ends all arrivals. Safe to repeat."""
