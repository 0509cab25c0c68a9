"""What an engine must offer so that trajectories can move from it and to it.

Two fill it: SGLang's side, whose pages lie in a page store, and the emulated engine. Everything above
(routes, migrations, transport) is the same for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from heddle_contracts.kv import EngineFacts, KvNamespace, MigrationRequest

from heddle_shim.transfer.page_file import Part

EngineState = Literal["starting", "ready", "busy", "dead"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Pages that a shim wants to push: the whole prefix in order, also what the target may have already."""

    id: str
    trajectory: str
    namespace: KvNamespace
    hashes: tuple[str, ...]
    deadline_s: float
    """Seconds left when it was sent."""


class PageSource(Protocol):
    """A trajectory's pages at the source, kept from eviction until ``close``."""

    @property
    def namespace(self) -> KvNamespace: ...

    @property
    def hashes(self) -> Sequence[str]: ...

    async def read(self, index: int) -> Sequence[Part] | None:
        """The parts of a page (``KvLayout.parts``); None if it is gone: the prefix then ends before it. The
        second read after this one may overwrite them.

        Raises:
            TransferFault: the weights have changed, or the engine is gone.
        """

    async def close(self) -> None:
        """Ends the protection. Safe to repeat."""


class PageSink(Protocol):
    """Room reserved at the target for the pages of one offer."""

    def missing(self) -> list[int]:
        """Indices of pages that are not here yet, rising."""

    async def write(self, index: int, parts: Sequence[Part]) -> None:
        """Stores a page, given in the source's layout and with checksums that were found right. The parts
        may be reused after the call.

        Raises:
            TransferFault: no room after all, or the weights have changed.
        """

    async def close(self, complete: int) -> None:
        """The transfer is over; the first ``complete`` pages are all here and soon needed. What was reserved
        and not used is given back. Safe to repeat.
        """


class EngineSide(Protocol):
    """The engine as its shim sees it."""

    def facts(self) -> EngineFacts: ...

    def state(self) -> EngineState: ...

    def namespace(self) -> KvNamespace | None:
        """Pages it makes and takes now; None while that is not known."""

    def cannot_migrate(self) -> str | None:
        """Why nothing can move from here or to here; None if it can."""

    async def open_source(self, request: MigrationRequest) -> PageSource:
        """Finds the pages that the request names.

        Raises:
            TransferFault: NOTHING_TO_MOVE, WEIGHTS_CHANGED, ENGINE.
        """

    async def open_sink(self, offer: Offer) -> PageSink:
        """Reserves room for what is missing of an offer, which may be nothing. Running requests lose
        nothing by it.

        Raises:
            TransferFault: MISMATCH, TARGET_FULL, ENGINE.
        """
