"""What the admin API says and hears: trajectories, workers, counts and problems.

The gateway's `routes/admin*.py` speak it, the `heddle` command reads it. Times are seconds of the Unix epoch,
lengths are tokens. A trajectory is named by the pair (tenant, trajectory id): two callers with different keys
may use the same id.
"""

from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from heddle_contracts.steps import Outcome, StepRecord


class TrajectoryKey(NamedTuple):
    """What names a trajectory. ``tenant`` is the hash of the caller's key, empty where no key was sent."""

    tenant: str
    trajectory_id: str


class Phase(StrEnum):
    """Where a trajectory stands: the core's phase while the gateway holds it, else what history knows."""

    CREATED = "created"
    WAITING = "waiting"
    RUNNING = "running"
    ABORTING = "aborting"
    IN_TOOL_GAP = "in_tool_gap"
    MIGRATING = "migrating"
    FINISHED = "finished"
    EXPIRED = "expired"
    DORMANT = "dormant"
    """Only in history and never ended: the gateway was restarted since, or the entry was crowded out."""


class EndReason(StrEnum):
    """Why a trajectory ended; the value is the phase it is shown with."""

    FINISHED = "finished"
    EXPIRED = "expired"


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# ------------------------------------------------------------------------------------------ trajectories


class TrajectorySort(StrEnum):
    """Sort keys of the trajectory list; a leading minus is descending. Ties are broken by (id, tenant)."""

    LAST_SEEN = "last_seen"
    LAST_SEEN_DESC = "-last_seen"
    FIRST_SEEN = "first_seen"
    FIRST_SEEN_DESC = "-first_seen"
    STEPS = "steps"
    STEPS_DESC = "-steps"

    @property
    def field(self) -> str:
        """Attribute of TrajectorySummary that is compared."""
        return self.value.removeprefix("-")

    @property
    def descending(self) -> bool:
        return self.value.startswith("-")


class TrajectoryFilter(_Request):
    """Which trajectories are listed; ``None`` does not restrict."""

    phase: Phase | None = None
    model: str | None = None
    worker: str | None = None
    group: str | None = None
    source: str | None = None
    tenant: str | None = None
    since: float | None = Field(default=None, description="Only those seen at or after this time.")
    prefix: str | None = Field(default=None, description="Only ids that begin with this.")


class LiveTrajectory(_Answer):
    """What the running gateway knows of a trajectory beyond its ended steps."""

    tenant: str
    trajectory_id: str
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    source: str
    model: str | None = None
    phase: Phase
    worker: str | None = Field(default=None, description="Name of its home worker.")
    steps: int = Field(ge=0, description="Index of the newest step, plus one; counts a running step.")
    live_steps: int = Field(ge=0, description="Steps now held or on a worker.")
    first_seen: float
    last_seen: float
    predicted_remaining: float | None = Field(default=None, description="Output tokens still expected.")
    level: int | None = Field(
        default=None, description="Priority level of its live steps; higher is served first."
    )


class TrajectorySummary(_Answer):
    """One line of the trajectory list: history's totals of ended steps, with the live view laid over them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "trajectory_id": "swe-4711",
                    "tenant": "",
                    "group_id": "swe-47",
                    "sample": 11,
                    "parent_id": None,
                    "source": "header",
                    "model": "qwen3-8b",
                    "phase": "in_tool_gap",
                    "worker": "gpu1:30000",
                    "steps": 12,
                    "segments": 1,
                    "outcomes": {"done": 11, "aborted": 1},
                    "prompt_tokens": 81234,
                    "cached_tokens": 70112,
                    "output_tokens": 4021,
                    "first_seen": 1764000000.0,
                    "last_seen": 1764000420.5,
                    "ended_at": None,
                    "live_steps": 0,
                    "predicted_remaining": 2950.0,
                    "level": 3,
                }
            ]
        }
    )

    trajectory_id: str
    tenant: str
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    source: str
    model: str | None = None
    phase: Phase
    worker: str | None = None
    steps: int = Field(description="Highest step index, plus one.")
    segments: int = Field(default=1, description="One more than the compactions seen.")
    outcomes: dict[Outcome, int] = Field(description="Ended steps by outcome; zero counts are left out.")
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_seen: float
    last_seen: float
    ended_at: float | None = None
    live_steps: int = 0
    predicted_remaining: float | None = None
    level: int | None = None

    @property
    def key(self) -> TrajectoryKey:
        return TrajectoryKey(self.tenant, self.trajectory_id)


class TrajectoryPage(_Answer):
    """A page of the list; ``next_cursor`` is None on the last one."""

    items: list[TrajectorySummary]
    next_cursor: str | None = None


class StepPage(_Answer):
    """Ended steps in the order they were written; ``next_after`` is None where no more follow."""

    items: list[StepRecord]
    next_after: int | None = None


class TrajectoryDetail(_Answer):
    """One trajectory with its ended steps."""

    trajectory: TrajectorySummary
    steps: StepPage


class FinishAnswer(_Answer):
    """What became of a request to finish a trajectory."""

    trajectory_id: str
    tenant: str
    live_steps: int = Field(description="Steps that still run; the trajectory is forgotten after them.")


# ----------------------------------------------------------------------------------------------- workers


class WorkerAdd(_Request):
    """A server to send steps to. Only the URL is needed: the rest is found by asking, or said here."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "http://gpu1:30000"}, {"url": "http://gpu2:8000", "degree": 4}]
        }
    )

    url: str = Field(description="http or https, without a path.")
    name: str | None = Field(default=None, description="What answers show in X-Heddle-Worker.")
    kind: Literal["sglang", "vllm", "llamacpp", "openai"] | None = None
    model: str | None = None
    degree: int | None = Field(default=None, ge=1, description="MP degree: GPUs a request runs on.")
    slots: int | None = Field(default=None, ge=1, description="Requests that run at once.")
    kv_tokens: int | None = Field(default=None, ge=0, description="KV pool in tokens; 0 is unlimited.")
    priority: Literal["higher", "lower", "none"] | None = Field(
        default=None, description="Which end of its priority number the engine serves first."
    )
    api_key: str | None = Field(default=None, repr=False, description="Sent to this worker; never shown.")


class WorkerView(_Answer):
    """One worker as the fleet sees it. What was not found yet is None."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 1,
                    "url": "http://gpu1:30000",
                    "name": "gpu1:30000",
                    "state": "active",
                    "generation": 1,
                    "kind": "sglang",
                    "models": ["qwen3-8b"],
                    "degree": 4,
                    "slots": 64,
                    "kv_tokens": 400000,
                    "features": ["abort", "rid", "loads", "generate", "pause", "flush"],
                    "priority": "higher",
                    "version": "0.5.23",
                    "emulated": False,
                    "running": 12,
                    "waiting": 0,
                    "kv_used": 151234,
                    "last_error": None,
                }
            ]
        }
    )

    id: int
    url: str
    name: str
    state: Literal["probing", "aside", "active", "suspect", "down", "draining", "removed"]
    generation: int = Field(description="Starts of the server seen so far; 0 before the first.")
    kind: str | None = None
    models: list[str] = []
    degree: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    features: list[str] = []
    priority: str | None = None
    version: str | None = None
    emulated: bool = False
    running: int | None = Field(default=None, description="Requests on the engine, by its own load report.")
    waiting: int | None = None
    kv_used: int | None = None
    last_error: str | None = None


class WorkerList(_Answer):
    """All workers, in order of id."""

    items: list[WorkerView]


# ------------------------------------------------------------------------------------------------ counts


class WriterState(StrEnum):
    """What the history writer is doing."""

    IDLE = "idle"
    WRITING = "writing"
    BACKING_OFF = "backing_off"
    CLOSED = "closed"


class HistoryStats(_Answer):
    """Where ended steps are on their way to the database.

    put + recovered = written + queued + spilled + dropped + refused, at any moment.
    """

    state: WriterState
    put: int = Field(description="Records handed over since the start of the process.")
    written: int = Field(description="Records now in the database, those read back from disk too.")
    queued: int
    capacity: int
    dropped: int = Field(description="Records lost because queue and spill folder were full, or at shutdown.")
    refused: int = Field(description="Records the database would not take; each is logged.")
    spilled: int = Field(description="Records now on disk alone; those that are queued are there too.")
    recovered: int = Field(description="Records found on disk that an earlier process left.")
    not_on_disk: int = Field(
        default=0, description="Records kept in memory alone because the spill folder did not take them."
    )
    failed_writes: int
    last_write_at: float | None = None
    last_error: str | None = None


class StepCounts(_Answer):
    """started = in_flight + the sum of ended, at any moment."""

    started: int
    in_flight: int
    ended: dict[Outcome, int]


class GatewayStats(_Answer):
    """Counts of the running gateway: its steps, the decision core, the history writer."""

    steps: StepCounts
    core: dict[str, int]
    history: HistoryStats


class CoreAudit(_Answer):
    """What the decision core finds when it checks its own books."""

    broken: list[str] = Field(description="Invariants that do not hold, in words; empty when all do.")


# ---------------------------------------------------------------------------------------------- problems


class Problem(BaseModel):
    """Error body of the admin API (RFC 9457), with the field at fault and what to do about it."""

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Unprocessable Content",
                    "status": 422,
                    "detail": "order: 'fastest' is not known",
                    "field": "order",
                    "allowed": ["fcfs", "round_robin", "shortest_first", "longest_first"],
                    "fix": "Send one of the allowed values.",
                }
            ]
        },
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    allowed: list[Any] | None = None
    fix: str | None = None
