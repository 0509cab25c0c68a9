"""Moving a trajectory's KV between workers: what shims, gateway and operators say to each other.

The gateway asks the source's shim (``POST /shim/v1/migrations``); that shim pushes pages to the target's
shim. Times are seconds and always relative: two hosts need not agree on the time of day. A page hash is
SGLang's: SHA-256 over the hash before it and the page's token ids, as 64 hex digits, so it names the whole
prefix that ends with the page.

Invariant: pages are never mixed between models, layouts or weight versions. ``KvNamespace`` is all three.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

SHIM_PROTOCOL: Literal[1] = 1

PageHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Attention(StrEnum):
    """What a token's KV consists of."""

    MHA = "mha"
    """Keys and values by head; GQA too. TP ranks split the heads; with more ranks than heads each head is
    on several.
    """
    MLA = "mla"
    """One latent row; every TP rank holds the same."""


class PageOrder(StrEnum):
    """How the numbers of a page lie in memory: SGLang's ``--hicache-mem-layout``.

    Axes of one rank's page (MHA), slowest first; source: SGLang 0.5.23, ``mem_cache/pool_host``.
    """

    LAYER_FIRST = "layer_first"
    """kv, layer, token, head, dim"""
    PAGE_FIRST = "page_first"
    """kv, token, layer, head, dim"""
    PAGE_FIRST_DIRECT = "page_first_direct"
    """kv, layer, token, head, dim"""
    PAGE_HEAD = "page_head"
    """kv, head, token, layer, dim: a range of heads is one block, the cheapest to re-shard."""


class KvLayout(_Contract):
    """Shape of one KV page of an engine. Sizes are of the whole model, not of one rank."""

    attention: Attention = Attention.MHA
    dtype: str = Field(description="Element type as the engine names it, such as bfloat16.")
    item_bytes: int = Field(ge=1, le=16, description="Bytes of one element.")
    page_size: int = Field(ge=1, description="Tokens of a page.")
    layers: int = Field(ge=1)
    kv_heads: int = Field(default=1, ge=1, description="KV heads of the whole model; 1 for MLA.")
    head_dim: int = Field(ge=1, description="Elements of a head; for MLA of the latent row.")
    tp_size: int = Field(default=1, ge=1)
    order: PageOrder = PageOrder.PAGE_FIRST
    rope: str = Field(default="", description="Digest of the position encoding's settings, where known.")

    @model_validator(mode="after")
    def _heads_split_evenly(self) -> Self:
        if self.attention is Attention.MLA:
            if self.kv_heads != 1:
                raise ValueError(f"kv_heads: {self.kv_heads} with MLA, whose latent row is 1; send 1")
        elif self.kv_heads % self.tp_size and self.tp_size % self.kv_heads:
            raise ValueError(
                f"tp_size: {self.tp_size} neither divides nor is a multiple of kv_heads {self.kv_heads}"
            )
        return self

    @property
    def rank_heads(self) -> int:
        """KV heads that one rank holds."""
        return max(1, self.kv_heads // self.tp_size)

    @property
    def parts(self) -> int:
        """Parts a page is stored and moved in: ranks whose pages differ. Other ranks hold copies."""
        return 1 if self.attention is Attention.MLA else min(self.tp_size, self.kv_heads)

    def part_of(self, tp_rank: int) -> int:
        """Which part of a page a rank holds."""
        return tp_rank * self.parts // self.tp_size

    @property
    def rank_page_bytes(self) -> int:
        """Bytes of one rank's part of a page."""
        rows = self.layers * self.page_size * self.head_dim * self.item_bytes
        return rows if self.attention is Attention.MLA else 2 * rows * self.rank_heads

    @property
    def page_bytes(self) -> int:
        """Bytes of a page that must be moved: every head once."""
        return self.rank_page_bytes * self.parts

    def mismatch(self, other: "KvLayout") -> str | None:
        """The first field in which no re-sharding can make two layouts fit, with both values."""
        for name in (
            "attention",
            "dtype",
            "item_bytes",
            "page_size",
            "layers",
            "kv_heads",
            "head_dim",
            "rope",
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name}: {mine} here, {theirs} there"
        return None


class KvNamespace(_Contract):
    """Whose pages: a page hash says which tokens, this says of which model, weights and layout."""

    model: str = Field(min_length=1, description="Fingerprint of the served model.")
    weight_version: str = Field(description="The engine's weight version; 'default' before any update.")
    layout: KvLayout

    @property
    def digest(self) -> str:
        """32 hex digits; equal namespaces have equal ones."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    def mismatch(self, other: "KvNamespace") -> str | None:
        """Why pages of the one are of no use to the other, or None where they can be re-sharded."""
        for name in ("model", "weight_version"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name}: {mine} here, {theirs} there"
        return self.layout.mismatch(other.layout)


# -------------------------------------------------------------------------------------------- migrations


class MigrationState(StrEnum):
    """Where a migration stands. All but the first two are final."""

    ACCEPTED = "accepted"
    MOVING = "moving"
    LANDED = "landed"
    """At least one page more than before is at the target; ``tokens_landed`` says how long the prefix is."""
    DECLINED = "declined"
    """Nothing was moved because it could not pay; the trajectory stays where it is."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The deadline came first. Whole pages that had arrived stay usable at the target."""

    @property
    def final(self) -> bool:
        return self not in {MigrationState.ACCEPTED, MigrationState.MOVING}


class MigrationFault(StrEnum):
    """Why a migration did not land."""

    NOTHING_TO_MOVE = "nothing_to_move"
    """The source has no whole page of this trajectory, or the target has all of them."""
    NOT_WORTH_IT = "not_worth_it"
    """The move would take longer than ``worth_s``."""
    TARGET_UNREACHABLE = "target_unreachable"
    MISMATCH = "mismatch"
    """Model, weights or layout differ; the detail names the field."""
    TARGET_FULL = "target_full"
    TARGET_BUSY = "target_busy"
    BROKEN = "broken"
    """The connection broke and did not come back in time."""
    CHECKSUM = "checksum"
    WEIGHTS_CHANGED = "weights_changed"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    ENGINE = "engine"
    """An engine or its shim went away or failed."""


class MigrationRequest(_Contract):
    """Bring a trajectory's KV from the worker of the shim that is asked to another one.

    What the source has stays there until it needs the room: others may share its pages.

    Which KV is said by ``page_hashes``, ``tokens`` or ``rid``; with several the first of them in this order
    is used. The same ``id`` again is the same migration, whatever else is sent.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "m-17",
                    "trajectory": "swe-42/3",
                    "target": "http://10.0.0.8:31900",
                    "rid": "5f1c0b6d2a8e4b7f9c3d1e0a7b6c5d4e",
                    "deadline_s": 2.5,
                    "worth_s": 0.9,
                }
            ]
        }
    )

    id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$")
    trajectory: str = Field(min_length=1, max_length=1024)
    target: str = Field(max_length=2048, description="Base URL of the target's shim.", pattern=r"^https?://")
    page_hashes: tuple[PageHash, ...] | None = Field(default=None, max_length=1_000_000)
    tokens: tuple[int, ...] | None = Field(
        default=None, max_length=4_000_000, description="Token ids of the history."
    )
    rid: str | None = Field(
        default=None, description="Engine request id of the trajectory's last step on the source."
    )
    weight_version: str | None = Field(
        default=None, description="Refused if the source's weights are another; None: whatever they are."
    )
    deadline_s: float = Field(gt=0, le=3600, description="Seconds from now; then it is given up.")
    worth_s: float | None = Field(
        default=None, gt=0, description="What re-prefill would cost; a move that takes longer is declined."
    )

    @model_validator(mode="after")
    def _names_kv(self) -> Self:
        if self.page_hashes is None and self.tokens is None and self.rid is None:
            raise ValueError("rid: nothing says which KV; send rid, tokens or page_hashes")
        return self


class MigrationStatus(_Contract):
    """How far a migration is, or how it ended. Tokens and pages count whole pages of the prefix."""

    id: str
    trajectory: str
    target: str
    state: MigrationState
    fault: MigrationFault | None = None
    detail: str = Field(default="", description="The fault in words: which field, which worker, what to do.")
    pages: int = Field(default=0, ge=0, description="Pages of the prefix that the source holds.")
    pages_present: int = Field(default=0, ge=0, description="Pages the target had already.")
    pages_moved: int = Field(default=0, ge=0, description="Pages stored at the target by this migration.")
    tokens_landed: int = Field(default=0, ge=0, description="Tokens of prefix now complete at the target.")
    bytes_moved: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0, description="From the request to the end, or so far.")
    expected_s: float | None = Field(default=None, description="What the shim expects the move to take.")
    attempts: int = Field(default=0, ge=0, description="Connections made; more than one after a break.")


class MigrationList(_Contract):
    """Migrations a shim remembers, newest first."""

    items: tuple[MigrationStatus, ...]


# -------------------------------------------------------------------------------------------- handshake


class EngineFacts(_Contract):
    """What a shim knows of its engine. What was not found is None."""

    kind: str = "sglang"
    version: str | None = None
    model: str | None = Field(default=None, description="Name it serves.")
    weight_version: str | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    dp_size: int | None = None
    page_size: int | None = None
    kv_dtype: str | None = None
    kv_tokens: int | None = None
    slots: int | None = None
    emulated: bool = False
    features: tuple[str, ...] = Field(
        default=(), description="Found by asking, such as warm, set_priority, keep_decoded_kv, kv_events."
    )


class Handshake(_Contract):
    """Answer of ``GET /shim/v1/handshake``: who stands here, and what can be moved to it."""

    protocol: Literal[1] = SHIM_PROTOCOL
    shim_version: str
    instance: str = Field(description="Another one at each start of the shim.")
    engine: EngineFacts
    namespace: KvNamespace | None = Field(
        default=None, description="Pages it takes now; None while it cannot."
    )
    transports: dict[str, str] = Field(
        default_factory=dict, description="Address by transport, such as {'tcp': '10.0.0.8:40123'}."
    )
    transfer_bytes_s: float | None = Field(
        default=None, gt=0, description="Bytes a second it has seen or is built for; None before the first."
    )
    cannot_migrate: str | None = Field(default=None, description="Why nothing can be moved from or to here.")


class ShimHealth(_Contract):
    """Answer of ``GET /shim/v1/health``."""

    instance: str
    engine: Literal["starting", "ready", "busy", "dead"]
    migrations: int = Field(ge=0, description="Running ones, in and out.")
