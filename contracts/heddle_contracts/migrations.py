"""Moves of KV as the gateway's admin API shows them and takes them (``/admin/v1/migrations``)."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class MoveState(StrEnum):
    """Where a move stands. The last four are final."""

    REQUESTED = "requested"
    """Wanted; waits for its workers, or for the trajectory's tool gap."""
    MOVING = "moving"
    CANCELLING = "cancelling"
    """Called off; its workers are busy until it has stopped."""
    LANDED = "landed"
    """The target has the KV and is the trajectory's home."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Move(BaseModel):
    """One move of a trajectory's KV. Times are seconds; workers are shown by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: int = Field(description="Counted from 1 by each process of the gateway.")
    process: str = Field(default="", description="Names that process: with the id it names the move.")
    trajectory_id: str
    tenant: str
    from_worker: str
    to_worker: str
    state: MoveState
    asked_by: Literal["policy", "operator"]
    tokens: int = Field(description="Context tokens at the source when it was asked for.")
    tokens_landed: int = Field(default=0, description="Of these, at the target when it had landed.")
    bytes_moved: int = 0
    seconds: float = Field(default=0.0, description="Of the transfer, so far or in all.")
    step_waited: bool = Field(default=False, description="A step came before it had landed, and waited.")
    fault: str | None = Field(default=None, description="Why it did not land, where it did not.")
    detail: str = Field(default="", description="The fault in words, as the worker's shim put them.")
    ended_at: float | None = Field(
        default=None, description="Seconds of the Unix epoch; None while it is under way."
    )


class MoveFilter(BaseModel):
    """Which moves are listed; a field that is None lets all pass."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trajectory_id: str | None = None
    tenant: str | None = None
    worker: str | None = Field(default=None, description="Name of its source or its target.")
    state: MoveState | None = None
    asked_by: Literal["policy", "operator"] | None = None
    since: float | None = Field(default=None, description="Ended since then, seconds of the Unix epoch.")

    def takes(self, move: Move) -> bool:
        """Whether a move is listed. One under way has not ended, so it is since any time."""
        return (
            self.trajectory_id in (None, move.trajectory_id)
            and self.tenant in (None, move.tenant)
            and self.worker in (None, move.from_worker, move.to_worker)
            and self.state in (None, move.state)
            and self.asked_by in (None, move.asked_by)
            and (self.since is None or move.ended_at is None or move.ended_at >= self.since)
        )


class MoveList(BaseModel):
    """Moves that have not ended, oldest first, then those that have, newest first."""

    items: list[Move]
    next_cursor: str | None = Field(default=None, description="Send it as cursor for the next page.")
    history: str | None = Field(
        default=None,
        description="Why older ones are missing: history cannot be read, and only this process's last"
        " thousand are shown. None where nothing is missing.",
    )


class MoveAsk(BaseModel):
    """Body of ``POST /admin/v1/migrations``."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"trajectory_id": "swe-42/3", "to": "gpu2:30000"}]},
    )

    trajectory_id: str = Field(min_length=1, max_length=1024)
    tenant: str | None = Field(
        default=None, description="Needed only where callers with different keys use the same id."
    )
    to: str = Field(min_length=1, max_length=2048, description="Name or id of the target worker.")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="How long the transfer may take. Without it four times what its bytes take at the "
        "rate of the link, at least 30 s and at most 120 s.",
    )
