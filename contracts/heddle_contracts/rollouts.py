"""Rollouts: batches of trajectories that are announced before they start.

Who announces a batch gets an id for each trajectory; agents then name theirs (``X-Heddle-Trajectory-Id``, or
``base_url`` with ``/t/{id}``), and the first placement of all of them is planned, not guessed.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from heddle_contracts.planning import Length

MAX_TRAJECTORIES = 50_000


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RolloutPrompt(_Contract):
    """One prompt of a batch; its samples form a group."""

    id: str | None = Field(
        default=None, min_length=1, max_length=200, description="Name of the group; made up if not given."
    )
    tokens: int = Field(default=0, ge=0, description="Prompt tokens; 0 where they are not known.")
    length: Length | None = Field(
        default=None, description="Output tokens that a sample is expected to take; predicted if not given."
    )


class RolloutCreate(_Contract):
    """A batch to come: ``prompts``, or ``lengths`` of which each stands for one prompt."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "epoch-3", "group_size": 8, "prompts": [{"id": "swe-47", "tokens": 3100}]},
                {"lengths": [52000, 4000, 900]},
            ]
        },
    )

    name: str | None = Field(default=None, max_length=200)
    prompts: tuple[RolloutPrompt, ...] | None = Field(default=None, min_length=1)
    lengths: tuple[Length, ...] | None = Field(
        default=None, min_length=1, description="Expected output tokens, one a prompt."
    )
    group_size: Annotated[int, Field(ge=1, le=4096)] = 1
    policy_version: str | None = Field(
        default=None,
        max_length=200,
        description="Of the model that is trained; kept and shown, not interpreted.",
    )
    model: str | None = None
    plan: bool = Field(default=True, description="Plan for the batch now, where there is a planner.")


class RolloutMember(_Contract):
    """One trajectory to be. Its agent sends ``trajectory_id`` in X-Heddle-Trajectory-Id."""

    trajectory_id: str
    group_id: str
    sample: int
    prompt: int = Field(description="Index of its prompt.")
    predicted: float | None = None


class Straggler(_Contract):
    """One of those that will end last."""

    trajectory_id: str
    predicted_remaining: float
    steps: int
    worker: str | None = None
    phase: str


class Rollout(_Contract):
    """A rollout and how far it is. Times are seconds; ``*_at`` of the Unix epoch."""

    id: str
    name: str | None = None
    policy_version: str | None = None
    model: str | None = None
    state: Literal["announced", "running", "finished"] = Field(
        description="finished: all are over. One of which nobody says so is over 10 s after an answer that "
        "called no tool, unless trajectories of this rollout have gone on after such answers; else "
        "dormant_after_ms (of the policy) after its last step."
    )
    created_at: float
    started_at: float | None = Field(default=None, description="Arrival of the first step.")
    ended_at: float | None = Field(default=None, description="End of the last step, once all are over.")
    trajectories: int
    waiting: int = Field(description="No step of it has come yet.")
    running: int
    finished: int
    answered: int = Field(
        default=0,
        description="Those whose last answer called no tool: finished, or taken for it if no step comes.",
    )
    quiet: int = Field(default=0, description="Of the finished those that have only gone quiet.")
    steps: int = Field(description="Ended steps.")
    output_tokens: int
    predicted_remaining: float = Field(description="Output tokens still expected of all of them.")
    makespan_so_far_s: float | None = None
    expected_end_at: float | None = Field(
        default=None, description="By the tokens of the slowest that are left; None before the first step."
    )
    stragglers: tuple[Straggler, ...] = ()
    plan_version: int | None = Field(default=None, description="Plan that was made for the batch.")


class RolloutCreated(_Contract):
    """The new rollout and its trajectories, by prompt and sample."""

    rollout: Rollout
    trajectories: tuple[RolloutMember, ...]


class RolloutList(_Contract):
    """Newest first."""

    items: tuple[Rollout, ...]


class RolloutTrajectory(_Contract):
    """One trajectory of a rollout and how far it is."""

    trajectory_id: str
    group_id: str
    sample: int
    state: Literal["waiting", "running", "over"] = Field(
        description="waiting: no step of it has come; over: it ended, was forgotten, or is taken for over as "
        "the rollout's state says."
    )
    steps: int = Field(description="Ended steps.")
    output_tokens: int
    predicted_remaining: float = Field(description="Output tokens still expected; 0 once it is over.")


class RolloutTrajectories(_Contract):
    """All of a rollout, by prompt and sample."""

    items: tuple[RolloutTrajectory, ...]
