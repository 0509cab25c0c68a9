"""The record of one ended step, as plain slots: built on the request's path, turned into a StepRecord
elsewhere.

Invariant: the fields are those of heddle_contracts.steps.StepRecord, by name and unit (a test compares them).
"""

from dataclasses import dataclass

from heddle_contracts.steps import Outcome


@dataclass(slots=True)
class EndedStep:
    """The meaning of each field is StepRecord's. Times: seconds of the Unix epoch."""

    trajectory_id: str
    tenant: str
    group_id: str | None
    sample: int | None
    parent_id: str | None
    source: str
    model: str | None
    dialect: str
    step: int
    segment: int
    attempts: int
    retries: int
    worker: str | None
    outcome: Outcome
    status: int | None
    finish_reason: str | None
    tool_names: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    usage_known: bool
    priority_level: int | None
    arrived_at: float
    dispatched_at: float | None
    first_byte_at: float | None
    ended_at: float
    gap_before_s: float | None
