"""Plans: what the planner is asked, what it answers, and how the admin API shows it.

Lengths are output tokens still to come, times are seconds. A rank counts from 0, the longest trajectory
first.

Invariant: in a plan the shares stand in the order of the ranks they take, so the first share has the longest.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from heddle_contracts.worker_profile import WorkerProfile

MAX_LENGTHS = 100_000

Length = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
SolverName = Literal["dp", "anneal", "exact"]
CostName = Literal["size_only", "simulated"]
ActivatedBy = Literal["operator", "planner"]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlanReason(StrEnum):
    """Why a plan was made."""

    PERIOD = "period"
    ERROR = "error"
    """The predictor's error has jumped."""
    WORKERS = "workers"
    """Workers came, went or changed."""
    ROLLOUT = "rollout"
    """A batch was announced."""
    REQUEST = "request"


class PlanWorker(_Contract):
    """A live worker as the planner needs it. ``*_us``: what the gateway's core believes of it, learned from
    its own steps.
    """

    id: int
    name: str
    degree: int = Field(ge=1)
    slots: int = Field(ge=1)
    kv_tokens: int = Field(default=0, ge=0, description="0 where it is not known.")
    token_us: float = Field(gt=0, description="Microseconds a token of a request that runs alone.")
    token_us_per_seq: float = Field(ge=0, description="What each request of the batch adds to it.")
    token_us_per_context_token: float = Field(ge=0, description="What each token of context adds to it.")
    prefill_tokens_per_s: float = Field(gt=0)
    homed: int = Field(default=0, ge=0, description="Active trajectories whose KV lies there.")
    homed_remaining: float = Field(default=0, ge=0, description="Tokens that these have still to come.")


class ActiveTrajectory(_Contract):
    """A live trajectory, with the estimate that the gateway's core goes by."""

    tenant: str
    trajectory_id: str
    group_id: str | None = None
    remaining: float = Field(ge=0)
    sigma: float | None = Field(default=None, ge=0, description="Spread of its logarithm, where predicted.")
    context_tokens: int = Field(default=0, ge=0)
    generated: int = Field(default=0, ge=0)


class PlanCompute(_Contract):
    """Body of ``POST /admin/v1/plans``; everything is optional. Without ``lengths`` the live trajectories are
    planned for the live workers.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {},
                {"lengths": [52000, 31000, 8000, 7500, 4000, 900], "gpus": 8, "degrees": [1, 2, 4]},
                {"dry_run": True},
            ]
        },
    )

    dry_run: bool = Field(default=False, description="Answer only: the plan is not kept and has no version.")
    lengths: tuple[Length, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_LENGTHS,
        description="Predicted output tokens of each trajectory to plan for.",
    )
    sigmas: tuple[Length, ...] | None = Field(
        default=None, description="Standard deviation of each length, tokens; as many as lengths."
    )
    gpus: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="GPUs to cut into workers; those of the live workers if not given.",
    )
    degrees: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="MP degrees that workers may have; all of the profile if not given.",
    )
    workers: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None, min_length=1, description="Fixed workers by MP degree, such as [8, 2, 2, 1]."
    )
    solver: SolverName = "exact"
    cost: CostName | None = Field(
        default=None,
        description="size_only: longest x T x F(size); simulated: slots, KV, prefill, tools, uncertainty."
        " Default: simulated where the profile suffices.",
    )
    profile: str | WorkerProfile | None = Field(
        default=None,
        description="Name of a packaged profile, or a profile. Default: the planner's, else what was learned"
        " of the live workers.",
    )


class PlanningRequest(_Contract):
    """``POST /planner/v1/plans``: what to plan, and what the gateway knows."""

    asked: PlanCompute = PlanCompute()
    reason: PlanReason = PlanReason.REQUEST
    workers: tuple[PlanWorker, ...] = ()
    active: tuple[ActiveTrajectory, ...] = Field(default=(), max_length=MAX_LENGTHS)
    policy: dict[str, Any] = Field(
        default_factory=dict, description="The core's policy in force; rehearsals change its placement only."
    )


class PlanShare(_Contract):
    """What one worker takes: consecutive ranks."""

    worker: int | None = Field(
        default=None, description="Id of the live worker; None in a plan for given lengths."
    )
    name: str | None = None
    degree: int = Field(description="MP degree.")
    size: int = Field(ge=0, description="Trajectories.")
    first_rank: int | None = Field(default=None, description="None where it takes no trajectory.")
    longest: float | None = Field(default=None, description="Predicted tokens of its longest trajectory.")
    shortest: float | None = None
    tokens: float = Field(default=0.0, description="Predicted tokens of all its trajectories.")
    seconds: float = Field(description="Expected time until its last trajectory ends.")
    limited_by: Literal["longest_trajectory", "amount_of_work", "nothing"] = Field(
        description="What the time comes from: one long trajectory, all the work together, or there is none."
    )


class Alternative(_Contract):
    """Another way to run the same trajectories, rehearsed in the simulator."""

    name: str
    placement: str = Field(description="Placement policy of the decision core.")
    with_plan: bool = Field(default=False, description="With the shares of this plan.")
    expected_makespan_s: float
    worst_makespan_s: float = Field(description="Of the draws of the rehearsal.")


class PlanMaking(StrEnum):
    """What came out."""

    SHARES = "shares"
    """The shares are the best way that was found."""
    NO_SHARES = "no_shares"
    """Placement without shares did better in rehearsal: the plan says which."""


class Plan(_Contract):
    """A plan as the admin API shows it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "version": 3,
                    "state": "current",
                    "reason": "workers",
                    "making": "shares",
                    "live": True,
                    "made_at": 1764000000.0,
                    "expires_at": 1764000120.0,
                    "inputs_digest": "5f0c1e64a3b2d798",
                    "trajectories": 6,
                    "gpus": 3,
                    "shape": [2, 1],
                    "profile": "learned from the live workers",
                    "solver": "exact",
                    "cost": "simulated",
                    "placement": "by_rank",
                    "fallback_placement": "by_rank",
                    "expected_makespan_s": 412.0,
                    "lower_bound_s": 398.0,
                    "solve_seconds": 0.0004,
                    "rehearsal_seconds": 0.02,
                    "shares": [
                        {
                            "worker": 1,
                            "name": "gpu1:30000",
                            "degree": 2,
                            "size": 2,
                            "first_rank": 0,
                            "longest": 52000.0,
                            "shortest": 31000.0,
                            "tokens": 83000.0,
                            "seconds": 398.0,
                            "limited_by": "longest_trajectory",
                        },
                        {
                            "worker": 2,
                            "name": "gpu2:30000",
                            "degree": 1,
                            "size": 4,
                            "first_rank": 2,
                            "longest": 8000.0,
                            "shortest": 900.0,
                            "tokens": 20400.0,
                            "seconds": 120.0,
                            "limited_by": "longest_trajectory",
                        },
                    ],
                    "alternatives": [
                        {
                            "name": "sticky",
                            "placement": "sticky",
                            "expected_makespan_s": 530.0,
                            "worst_makespan_s": 604.0,
                        }
                    ],
                }
            ]
        },
    )

    version: int | None = Field(default=None, description="None for a dry run.")
    state: Literal["candidate", "current", "replaced", "expired"] = "candidate"
    reason: PlanReason
    making: PlanMaking
    live: bool = Field(description="Made for the live trajectories and workers; else for given lengths.")
    made_at: float
    expires_at: float
    activated_at: float | None = Field(default=None, description="When it was put in force last.")
    activated_by: ActivatedBy | None = None
    inputs_digest: str = Field(description="Equal inputs have equal digests.")
    trajectories: int
    gpus: int
    shape: tuple[int, ...] = Field(description="MP degrees of the workers, in the order of the shares.")
    profile: str = Field(description="Where the workers' speeds come from.")
    solver: SolverName
    cost: CostName
    placement: str = Field(description="Placement policy that the plan wants in force.")
    fallback_placement: str = Field(
        description="The placement without shares, for when the plan has expired and no other is there."
    )
    expected_makespan_s: float
    lower_bound_s: float = Field(
        description="No schedule on these workers is expected to beat it: the longest trajectory alone on the"
        " fastest, or all work over all throughput."
    )
    solve_seconds: float
    rehearsal_seconds: float = 0.0
    shares: tuple[PlanShare, ...] = ()
    alternatives: tuple[Alternative, ...] = Field(default=(), description="Best first.")
    members: tuple[tuple[int | str, ...], ...] = Field(
        default=(),
        description="For each share its trajectories, longest first: indices into the given lengths, or live"
        " ids.",
    )


class PlanFilter(_Contract):
    """Which plans are listed; a field that is None lets all pass."""

    reason: PlanReason | None = None
    making: PlanMaking | None = None
    live: bool | None = None
    activated: bool | None = Field(default=None, description="Whether it was ever in force.")
    since: float | None = Field(default=None, description="Made since then, seconds of the Unix epoch.")

    def takes(self, plan: Plan) -> bool:
        """Whether a plan is listed."""
        return (
            self.reason in (None, plan.reason)
            and self.making in (None, plan.making)
            and self.live in (None, plan.live)
            and self.activated in (None, plan.activated_at is not None)
            and (self.since is None or plan.made_at >= self.since)
        )


class PlanList(_Contract):
    """Kept plans, newest first, without their members."""

    items: tuple[Plan, ...]
    current: int | None = Field(default=None, description="Version in force.")
    planner: str = Field(description="How the planner is: absent, ready, slow, away, nonsense.")
    next_cursor: str | None = Field(default=None, description="Send it as cursor for the next page.")
    history: str | None = Field(
        default=None,
        description="Why older ones are missing: history cannot be read, and only those in this process's"
        " memory are shown. None where nothing is missing.",
    )


class ShareExplained(_Contract):
    """One worker's part, in words."""

    worker: str
    degree: int
    ranks: str
    seconds: float
    limit: str
    text: str


class TrajectoryExplained(_Contract):
    """Why one trajectory is where it is."""

    trajectory_id: str
    rank: int | None
    predicted: float
    planned_on: str | None
    now_on: str | None = None
    text: str


class PlanExplained(_Contract):
    """A plan for somebody who has not read the paper."""

    version: int
    summary: str
    words: dict[str, str] = Field(description="The terms that are used, explained.")
    workers: tuple[ShareExplained, ...]
    trajectories: tuple[TrajectoryExplained, ...] = Field(description="The longest ones first, bounded.")
    alternatives: tuple[str, ...]


class Activated(_Contract):
    """What activation did."""

    plan: Plan
    placement_before: str
    fleet: tuple[str, ...] = Field(description="Which live worker has which share.")


class EventKind(StrEnum):
    """What ``GET /admin/v1/events`` tells of: what the core wants done and is told, what becomes of plans."""

    DISPATCH = "dispatch"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    MIGRATE = "migrate"
    CANCEL_MIGRATION = "cancel_migration"
    PREDICTED = "predicted"
    PLAN_INSTALLED = "plan_installed"
    PLAN_ACTIVATED = "plan_activated"
    PLAN_EXPIRED = "plan_expired"
    PLAN_FAILED = "plan_failed"


class DecisionEvent(_Contract):
    """One ``data:`` line of ``GET /admin/v1/events``; fields that do not apply are left out."""

    at: float
    kind: EventKind
    trajectory_id: str | None = None
    worker: str | None = None
    facts: dict[str, Any] = {}
