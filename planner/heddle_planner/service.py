"""The planner as a service: step records in, forecasts out, plans on demand. I/O around `observed` and
`round`.

The gateway calls, the planner never does: it knows no gateway's address, keeps nothing on disk and can be
killed and started again at any time; what it had learned of running trajectories comes back with their next
steps. Forecasts are made in the event loop (milliseconds a batch), plans of live trajectories in a process of
their own, plans for given lengths in a thread.

Invariant: one round for live trajectories at a time; plans for given lengths do not wait for it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Response
from fastapi.responses import JSONResponse
from heddle_contracts.planning import Plan, PlanCompute, PlanningRequest
from heddle_contracts.predictions import ForecastBatch, StepBatch
from heddle_contracts.worker_profile import WorkerProfile
from pydantic import BaseModel, ConfigDict, Field

from heddle_planner.given_lengths import plan_given
from heddle_planner.live_profile import LEARNED, profile_of
from heddle_planner.observed import Observed
from heddle_planner.profiles import load_profile, packaged_names
from heddle_planner.round import NothingLive, RoundError, Window
from heddle_planner.round_process import RoundProcess

ERROR_JUMP: Final = "the error of the predictions has jumped"
STAND_IN_PROFILE: Final = "qwen3-8b-h100"
"""Speeds of degrees that no live worker has, where the operator gave no profile."""

QUIET_S: Final = 60.0
"""Where the gateway's policy does not say when a trajectory is dormant."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """``profile``: of the workers, where the operator has one; its name goes into plans. ``plan_ttl_s``: how
    long a plan holds. ``key``: what callers must send as bearer token; None lets everybody in.
    """

    profile: WorkerProfile | None = None
    profile_name: str = LEARNED
    plan_ttl_s: float = 120.0
    key: str | None = None


class PlannerStats(BaseModel):
    """What the planner has seen and done."""

    model_config = ConfigDict(frozen=True)

    model: str
    steps_seen: int
    running: int = Field(description="Trajectories it knows that are not over.")
    finished: int = Field(description="Finished trajectories that plans are rehearsed with.")
    error: float | None = Field(
        description="Standard deviation of log(actual / forecast) of late; None while too few are over."
    )
    plans: int


class Refusal(BaseModel):
    """Why a request cannot be served: the field at fault, and what to do."""

    detail: str
    field: str | None = None


def create_app(
    observed: Observed, settings: ServiceSettings, on_close: Callable[[], object] = lambda: None
) -> FastAPI:
    """The ASGI application; ``on_close`` is called when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        rounds.warm_up()
        await asyncio.to_thread(_warm_up, observed)
        yield
        rounds.close()
        on_close()

    app = FastAPI(title="Heddle planner", lifespan=lifespan)
    app.state.observed = observed
    rounds = RoundProcess()
    made = 0

    async def let_in(authorization: Annotated[str, Header()] = "") -> None:
        if settings.key is not None:
            sent = authorization.removeprefix("Bearer ")
            if not secrets.compare_digest(sent.encode(), settings.key.encode()):
                raise HTTPException(HTTPStatus.UNAUTHORIZED, "the planner's key is missing or wrong")

    async def teach() -> None:
        """In the event loop, where the predictor is asked; its answer is on its way."""
        observed.teach()

    router = APIRouter(prefix="/planner/v1", dependencies=[Depends(let_in)])

    @router.post("/steps", summary="Steps that ended, forecasts of what goes on")
    async def take_steps(batch: StepBatch, after: BackgroundTasks) -> ForecastBatch:
        after.add_task(teach)
        forecasts = observed.take(batch)
        replan = None
        if observed.error.has_jumped:
            observed.error.settle()
            replan = ERROR_JUMP
        return ForecastBatch(forecasts=tuple(forecasts), model=observed.model, replan=replan)

    @router.post("/plans", summary="A plan for live trajectories or given lengths", response_model=Plan)
    async def make_plan(request: PlanningRequest, after: BackgroundTasks) -> Any:
        nonlocal made
        after.add_task(teach)
        try:
            if request.asked.lengths is not None:
                plan = await asyncio.to_thread(_given, request, settings)
            else:
                active = {(one.tenant, one.trajectory_id) for one in request.active}
                observed.rest_but(active, _quiet_s(request.policy))
                plan = await rounds.plan(
                    _window(request, settings, observed),
                    time.time(),
                    reason=request.reason,
                    ttl_s=settings.plan_ttl_s,
                )
        except NothingLive as error:
            return _refused(HTTPStatus.CONFLICT, str(error))
        except RoundError as error:
            return _refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        made += 1
        # As it is: FastAPI would validate it a second time.
        return Response(plan.model_dump_json(), media_type="application/json")

    @router.get("/stats", summary="What the planner has seen and done")
    async def stats() -> PlannerStats:
        return PlannerStats(
            model=observed.model,
            steps_seen=observed.steps_seen,
            running=len(observed),
            finished=observed.finished,
            error=observed.error.sigma,
            plans=made,
        )

    @app.get("/health", summary="Liveness: this process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", summary="Readiness: a model is loaded")
    async def ready() -> dict[str, str]:
        return {"status": "ready", "model": observed.model}

    app.include_router(router)
    return app


def _warm_up(observed: Observed) -> None:
    """Neither the first forecast nor the first plan shall be the slow one."""
    observed.warm_up()
    asked = PlanCompute(lengths=(1.0, 2.0), gpus=2)
    plan_given(asked, load_profile(STAND_IN_PROFILE), STAND_IN_PROFILE, 0.0).model_dump_json()


def _window(request: PlanningRequest, settings: ServiceSettings, observed: Observed) -> Window:
    """What a round of the live trajectories looks at. Raises RoundError."""
    asked = request.asked
    unsuited = [
        name
        for name, value in (("gpus", asked.gpus), ("degrees", asked.degrees), ("workers", asked.workers))
        if value is not None
    ]
    if unsuited:
        raise RoundError(
            f"{unsuited[0]}: live trajectories are planned for the live workers; give lengths too"
        )
    profile, name = _profile(asked, settings)
    return Window(
        workers=request.workers,
        active=request.active,
        past=observed.past,
        error=observed.error.sigma,
        policy=request.policy,
        profile=profile,
        profile_name=name,
    )


def _quiet_s(policy: Mapping[str, Any]) -> float:
    """Seconds after its last step from which a trajectory is taken for over, as the gateway's rollouts do."""
    said = policy.get("dormant_after_ms")
    return said / 1000.0 if isinstance(said, int | float) else QUIET_S


def _given(request: PlanningRequest, settings: ServiceSettings) -> Plan:
    asked = request.asked
    profile, name = _profile(asked, settings)
    if profile is None and request.workers:
        profile = profile_of(request.workers)
    if profile is None:
        profile, name = load_profile(STAND_IN_PROFILE), STAND_IN_PROFILE
    wanted = asked.degrees or asked.workers
    if asked.profile is None and wanted and not set(wanted) <= profile.degrees.keys():
        # What was learned of the live workers says nothing of other degrees: the usual model stands in.
        profile, name = load_profile(STAND_IN_PROFILE), STAND_IN_PROFILE
    return plan_given(
        asked,
        profile,
        name,
        time.time(),
        live_gpus=sum(worker.degree for worker in request.workers),
        ttl_s=settings.plan_ttl_s,
    )


def _profile(asked: PlanCompute, settings: ServiceSettings) -> tuple[WorkerProfile | None, str]:
    """The profile that was asked for, by name or in full, or the operator's. A caller names no file of this
    host. Raises RoundError.
    """
    if isinstance(asked.profile, WorkerProfile):
        return asked.profile, asked.profile.model or "given"
    if asked.profile is not None:
        if asked.profile not in packaged_names():
            raise RoundError(f"profile: {asked.profile!r} is none of {', '.join(packaged_names())}")
        return load_profile(asked.profile), asked.profile
    return settings.profile, settings.profile_name


def _refused(status: HTTPStatus, message: str) -> JSONResponse:
    field, colon, _ = message.partition(": ")
    named = field if colon and field.isidentifier() else None
    return JSONResponse(Refusal(detail=message, field=named).model_dump(), status_code=status)
