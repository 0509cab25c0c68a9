"""What gateway and planner say to each other about lengths, in the tool gap.

The gateway posts the steps that ended since its last call (``POST /planner/v1/steps``); the answer holds a
forecast for each trajectory that goes on. Lengths are output tokens still to come, times are seconds of the
Unix epoch.
"""

from pydantic import BaseModel, ConfigDict, Field

from heddle_contracts.steps import StepRecord

MAX_BATCH = 1024
"""Steps in one call at most; what does not fit goes with the next."""
ANNOUNCED_TENANT = "\0announced"
"""Stands for the caller of a trajectory that was announced and has not come yet; no hash of a key is like
it.
"""


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrajectoryOver(_Contract):
    """No further step comes: its owner said so, or it was idle for too long."""

    tenant: str
    trajectory_id: str
    finished: bool = Field(description="Its owner said so; else it was idle for too long.")
    at: float


class NewTrajectory(_Contract):
    """A trajectory whose first step has come, or, of ANNOUNCED_TENANT, that was announced with a rollout."""

    tenant: str
    trajectory_id: str
    group_id: str | None = None
    sample: int | None = None
    model: str | None = None
    prompt_tokens: int = Field(default=0, ge=0, description="0 where it is not known.")


class StepBatch(_Contract):
    """What happened since the last call, oldest first."""

    steps: tuple[StepRecord, ...] = Field(default=(), max_length=MAX_BATCH)
    over: tuple[TrajectoryOver, ...] = Field(default=(), max_length=MAX_BATCH)
    new: tuple[NewTrajectory, ...] = Field(default=(), max_length=MAX_BATCH)


class Forecast(_Contract):
    """How long one trajectory still is. ``step``: the ended step that it looks back on; None before the
    first.
    """

    tenant: str
    trajectory_id: str
    step: int | None = None
    mean: float = Field(ge=0, description="Expected output tokens still to come.")
    sigma: float = Field(ge=0, description="Standard deviation of the logarithm of that length.")
    gap_s: float | None = Field(default=None, ge=0, description="Usual (median) tool gap after that step.")


class ForecastBatch(_Contract):
    """Forecasts in no particular order; a trajectory that the planner has nothing to say of has none."""

    forecasts: tuple[Forecast, ...] = ()
    model: str = Field(description="Name of the model that spoke.")
    replan: str | None = Field(
        default=None, description="Why a new plan is called for now, such as a jump of the error."
    )
