"""The emulated engine as a shim sees it: its prefix tree's pages leave and arrive over the real transport.

Bytes are few and checked (``synthetic_page``), time is that of real KV over the profile's link (``link``), in
simulated seconds. Of an offer only what the tree lacks is sent; the tree knows tokens, so the hashes of what
it has are computed (``known_pages``).
"""

from collections.abc import Sequence
from typing import Final, Protocol

from heddle_contracts.kv import EngineFacts, KvLayout, KvNamespace, MigrationFault, MigrationRequest
from pydantic import ValidationError

from heddle_shim.emulator.clock import Clock
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.histories import Histories
from heddle_shim.emulator.known_pages import known_pages
from heddle_shim.emulator.kv_moves import KvMoves
from heddle_shim.emulator.kv_pool import KvHold
from heddle_shim.emulator.link import Link
from heddle_shim.emulator.synthetic_page import MOVED_PAGE_TOKENS, layout_of, make_page, tokens_of_page
from heddle_shim.emulator.tokens import ID_BYTES, count, pack, unpack
from heddle_shim.page_hashes import page_hashes
from heddle_shim.transfer.engine_side import EngineState, Offer
from heddle_shim.transfer.faults import TransferFault
from heddle_shim.transfer.page_file import Part

WEIGHT_VERSION: Final = "default"


class Carried(Protocol):
    """The driver of an engine: every call to the engine goes through its clock."""

    @property
    def clock(self) -> Clock: ...

    def catch_up(self) -> None: ...


class EmulatedEngineSide:
    """Fills ``EngineSide`` for one emulated worker. All calls come from its event loop."""

    def __init__(
        self,
        engine: Engine,
        driver: Carried,
        histories: Histories,
        *,
        model: str,
        version: str,
        moved_page: int = MOVED_PAGE_TOKENS,
    ) -> None:
        self._engine = engine
        self._driver = driver
        self._histories = histories
        self._model = model
        self._version = version
        self._moves = KvMoves(engine)
        self._out = Link(driver.clock, engine.costs.transfer_token)
        self._in = Link(driver.clock, engine.costs.transfer_token)
        self._namespace: KvNamespace | None = None
        self._refusal: str | None = None
        if engine.costs.profile.transfer_bytes_s <= 0:
            self._refusal = "transfer_bytes_s of the timing profile is 0"
        try:
            layout = layout_of(engine.config.page_size, engine.costs.degree, moved_page)
            self._namespace = KvNamespace(
                model=f"emulated:{model}", weight_version=WEIGHT_VERSION, layout=layout
            )
        except ValidationError as error:
            self._refusal = f"MP degree {engine.costs.degree}: {error.errors()[0]['msg']}"

    def facts(self) -> EngineFacts:
        config = self._engine.config
        return EngineFacts(
            kind="sglang",
            version=self._version,
            model=self._model,
            weight_version=WEIGHT_VERSION,
            tp_size=self._engine.costs.degree,
            pp_size=1,
            dp_size=1,
            page_size=config.page_size,
            kv_dtype="emulated",
            kv_tokens=self._engine.pool.total,
            slots=config.max_running_requests,
            emulated=True,
        )

    def state(self) -> EngineState:
        return "ready"

    def namespace(self) -> KvNamespace | None:
        return self._namespace

    def cannot_migrate(self) -> str | None:
        return self._refusal

    async def open_source(self, request: MigrationRequest) -> "EmulatedSource":
        namespace = self._own()
        if request.weight_version not in {None, namespace.weight_version}:
            raise TransferFault(
                MigrationFault.WEIGHTS_CHANGED,
                f"weight_version: {request.weight_version} asked, {namespace.weight_version} here",
            )
        tokens = self._tokens_of(request)
        hold = self._moves.hold(self._driver.clock.now(), tokens)
        self._driver.catch_up()
        if hold is None:
            raise TransferFault(MigrationFault.ENGINE, "the source's running requests need its whole pool")
        size = namespace.layout.page_size
        whole = tokens[: hold.shared // size * size * ID_BYTES]
        if not whole:
            self.let_go(hold)
            raise TransferFault(
                MigrationFault.NOTHING_TO_MOVE,
                f"{hold.shared} of {count(tokens)} tokens are in the source's prefix tree; a page has {size}",
            )
        return EmulatedSource(self, namespace, whole, hold)

    async def open_sink(self, offer: Offer) -> "EmulatedSink":
        namespace = self._own()
        if (fault := namespace.mismatch(offer.namespace)) is not None:
            raise TransferFault(MigrationFault.MISMATCH, fault)
        size, now = namespace.layout.page_size, self._driver.clock.now()
        known = known_pages(self._engine.pool.tree, offer.hashes, size)
        present = self._moves.hold(now, known)
        wanted = len(offer.hashes) * size - count(known)
        granted = present is not None and self._moves.promise(now, wanted)
        if present is not None and not granted:
            self._moves.let_go(now, present)
        self._driver.catch_up()
        if present is None or not granted:
            raise TransferFault(
                MigrationFault.TARGET_FULL,
                f"{wanted} tokens do not fit beside what runs in the target's pool of"
                f" {self._engine.pool.total}",
            )
        return EmulatedSink(self, offer, known, present, wanted)

    # ---------------------------------------------------------------------------- for source and sink

    async def send(self, tokens: int, *, last: bool) -> None:
        await self._out.carry(tokens, last=last)

    async def receive(self, tokens: int, *, last: bool) -> None:
        await self._in.carry(tokens, last=last)

    def adopt(self, promised: int, tokens: bytes, present: KvHold) -> None:
        now = self._driver.clock.now()
        self._moves.adopt(now, promised, tokens, present.shared)
        self._moves.let_go(now, present)
        self._driver.catch_up()

    def let_go(self, hold: KvHold) -> None:
        self._moves.let_go(self._driver.clock.now(), hold)
        self._driver.catch_up()

    def _own(self) -> KvNamespace:
        if self._namespace is None or self._refusal is not None:
            raise TransferFault(MigrationFault.ENGINE, self._refusal or "no namespace")
        return self._namespace

    def _tokens_of(self, request: MigrationRequest) -> bytes:
        if request.tokens is not None:
            try:
                return pack(request.tokens)
            except OverflowError as error:
                raise TransferFault(
                    MigrationFault.NOTHING_TO_MOVE, f"tokens: not ids of this model ({error})"
                ) from error
        if request.rid is None:
            raise TransferFault(
                MigrationFault.NOTHING_TO_MOVE,
                "page_hashes: the emulated engine does not know tokens by page hash; send rid or tokens",
            )
        found = self._histories.tokens(request.rid)
        if found is None:
            raise TransferFault(
                MigrationFault.NOTHING_TO_MOVE, f"rid: {request.rid} is none of the requests that ended here"
            )
        return found


class EmulatedSource:
    """Whole pages of a prefix in the tree, locked until ``close``."""

    def __init__(self, side: EmulatedEngineSide, namespace: KvNamespace, tokens: bytes, hold: KvHold) -> None:
        self.namespace: Final = namespace
        self._side = side
        self._tokens = tokens
        self._hold: KvHold | None = hold
        self._page = namespace.layout.page_size
        self.hashes: Final = tuple(page_hashes(unpack(tokens), self._page))

    async def read(self, index: int) -> Sequence[Part]:
        await self._side.send(self._page, last=index + 1 == len(self.hashes))
        start = index * self._page * ID_BYTES
        tokens = self._tokens[start : start + self._page * ID_BYTES]
        return [Part.of(data) for data in make_page(self.namespace.layout, self.hashes[index], tokens)]

    async def close(self) -> None:
        if self._hold is not None:
            hold, self._hold = self._hold, None
            self._side.let_go(hold)


class EmulatedSink:
    """Room in the pool for what is missing of an offer's pages; they become a prefix in the tree when it is
    closed. What is ``known`` of it is held until then.
    """

    def __init__(
        self, side: EmulatedEngineSide, offer: Offer, known: bytes, present: KvHold, promised: int
    ) -> None:
        self._side = side
        self._layout: KvLayout = offer.namespace.layout
        self._hashes = offer.hashes
        self._present = present
        self._promised: int | None = promised
        step = self._layout.page_size * ID_BYTES
        self._pages = {at // step: known[at : at + step] for at in range(0, len(known), step)}

    def missing(self) -> list[int]:
        return [index for index in range(len(self._hashes)) if index not in self._pages]

    async def write(self, index: int, parts: Sequence[Part]) -> None:
        tokens = tokens_of_page(self._layout, self._hashes[index], [part.data for part in parts])
        if tokens is None:
            raise TransferFault(MigrationFault.CHECKSUM, f"page {index} is not the one its hash names")
        last = len(self._pages) + 1 == len(self._hashes)
        await self._side.receive(self._layout.page_size, last=last)
        self._pages[index] = tokens

    async def close(self, complete: int) -> None:
        if self._promised is None:
            return
        promised, self._promised = self._promised, None
        tokens = b"".join(self._pages[index] for index in range(complete))
        # A page names all before it, so equal hashes say that the pages are in order and of one history.
        if page_hashes(unpack(tokens), self._layout.page_size) != list(self._hashes[:complete]):
            tokens = b""
        self._side.adopt(promised, tokens, self._present)
