"""Step and trajectory records: what the gateway hands to history, planner and admin API.

One record per step, always: also for steps that were rejected, aborted or lost.
"""

from enum import StrEnum
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field


class Outcome(StrEnum):
    """How a step ended. Exactly one per step."""

    DONE = "done"
    ABORTED = "aborted"
    WORKER_LOST = "worker_lost"
    CLIENT_ERROR = "client_error"
    WORKER_ERROR = "worker_error"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"


class StepIdentity(Protocol):
    """Whose a step is, as StepRecord says it of one that has ended."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def sample(self) -> int | None: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def step(self) -> int: ...
    @property
    def segment(self) -> int: ...


class StepRecord(BaseModel):
    """One ended step.

    Times are seconds of the Unix epoch; token counts are the worker's own usage where known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    trajectory_id: str
    tenant: str = Field(description="Hash of the caller's key; empty where no key was sent.")
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    source: str = Field(description="Identity rule that fired.")
    model: str | None = None
    dialect: str
    step: int = Field(ge=0, description="Index of the step in its trajectory.")
    segment: int = Field(default=0, ge=0, description="Grows by one at each compaction of the history.")
    attempts: int = Field(
        default=1, ge=0, description="Dispatches to a worker; 0 if it never left the gateway."
    )
    retries: int = Field(default=0, ge=0, description="Repeats of this step by the client.")
    worker: str | None = None
    outcome: Outcome
    status: int | None = Field(
        default=None, description="HTTP status the caller saw; None if it left before."
    )
    finish_reason: str | None = None
    tool_names: tuple[str, ...] = ()
    prompt_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    usage_known: bool = False
    priority_level: int | None = None
    arrived_at: float
    dispatched_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float
    gap_before_s: float | None = Field(default=None, description="Tool gap before this step.")
