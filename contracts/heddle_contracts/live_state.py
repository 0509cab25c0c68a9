"""Live state as it is kept outside of the gateway's process: another process can go on with it."""

from pydantic import BaseModel, ConfigDict, Field

from heddle_contracts.planning import Plan
from heddle_contracts.rollouts import RolloutMember

SCHEMA_VERSION = 1


class TrajectoryState(BaseModel):
    """What a gateway that takes over needs to know of one trajectory.

    Token counts are the workers' own usage. Times are seconds of the Unix epoch on the writer's host; ages
    are judged by the store's own clock.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str
    tenant: str
    source: str = Field(description="Identity rule that fired at the latest step.")
    model: str | None = None
    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    home: str | None = Field(default=None, description="URL of the worker that holds its KV.")
    steps: int = Field(ge=0, description="Steps so far: the number of the next one.")
    segment: int = Field(default=0, ge=0)
    context_tokens: int = Field(default=0, ge=0, description="Prompt and output of the last step.")
    output_tokens: int = Field(default=0, ge=0, description="Generated over all steps.")
    predicted_tokens: float | None = Field(default=None, ge=0, description="Output tokens still to come.")
    rank: int | None = Field(default=None, ge=0, description="Place by predicted length, longest first.")
    weight_version: str | None = Field(default=None, description="Weights that its KV was computed by.")
    first_seen: float
    last_seen: float
    conversation: str | None = Field(
        default=None, description="Identity's memory of its history: how an untagged request is recognised."
    )

    @property
    def segments(self) -> int:
        """Segments so far."""
        return self.segment + 1


class RegisteredWorker(BaseModel):
    """A worker that was added while the gateway ran: what was said of it when it was."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    number: int = Field(description="Workers are taken up in this order.")
    url: str
    name: str | None = None
    kind: str | None = None
    model: str | None = None
    degree: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    priority: str | None = None
    api_key: str | None = Field(default=None, repr=False, description="Needed to ask the worker at all.")
    shim_url: str | None = None


class PlanPointer(BaseModel):
    """Which plan is in force, with the plan itself: the history may be away, or behind."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    last_version: int = Field(ge=0, description="The highest that was given.")
    plan: Plan | None = None
    lengths: tuple[float, ...] = Field(default=(), description="Those it was made for, where given.")


class MemberState(BaseModel):
    """A trajectory of a rollout, as it was announced."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    who: RolloutMember
    sigma: float = Field(description="Spread of the logarithm of its length.")


class MemberProgress(BaseModel):
    """How far a trajectory of a rollout is. Times are seconds of the Unix epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: int = Field(default=0, ge=0, description="Ended steps.")
    output_tokens: int = Field(default=0, ge=0)
    first_at: float | None = Field(default=None, description="Arrival of its first step.")
    last_at: float | None = Field(default=None, description="End of its last step so far.")
    over: bool = False
    answered: bool = Field(default=False, description="Its last step is an answer that called no tool.")
    went_on: bool = Field(default=False, description="A step has come after such an answer.")


class RolloutState(BaseModel):
    """A rollout that was announced: whoever leads next goes on with it. ``progress``: one a member."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = SCHEMA_VERSION
    id: str
    name: str | None = None
    policy_version: str | None = None
    model: str | None = None
    created_at: float
    plan_version: int | None = None
    members: tuple[MemberState, ...]
    progress: tuple[MemberProgress, ...]
