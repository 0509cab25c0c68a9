"""The routes that RL frameworks already call on a router: workers, aborting, closing sessions, loads.

Two dialects, since slime, miles, verl and others speak both: ``/workers`` of sglang's model gateway, and
``/add_worker``, ``/remove_worker``, ``/list_workers`` of the older sglang_router. With them go the controls
that such frameworks send through the router to every engine. All of it is the operator's (admin key),
except ``/finish_session``, which an agent calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.params import Depends
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from heddle_contracts.shim import WorkerReport
from pydantic import BaseModel, ConfigDict, Field

from heddle_gateway.fleet.errors import AddressRefused, FleetFull, UnknownWorker, WorkerTakenOut
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.fleet.fanout import (
    Fate,
    WorkerLoad,
    WorkerReply,
    ask_loads,
    fan_out,
    overall_status,
    post,
)
from heddle_gateway.fleet.features import EngineKind, PrioritySense
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.fleet.state import WorkerState
from heddle_gateway.fleet.worker import WorkerView

NO_WORKER_RETRY_AFTER_S = 5


class AttemptRef(NamedTuple):
    """A step that runs on a worker, under the rid the gateway gave it there."""

    worker_id: int
    generation: int
    rid: str


class LiveSteps(Protocol):
    """What these routes need of the steps in flight (gateway.live)."""

    def attempts_of(self, rid: str) -> Sequence[AttemptRef]:
        """Attempts that answer to exactly this id: the one the caller sent, or the one minted for the
        worker.
        """

    def end_waiting(self, rid: str | None) -> int:
        """Aborts what waits here (of this id; all for None) or runs on deaf engines; how many."""

    def pause_dispatch(self, paused: bool) -> bool:
        """Steps wait in the gateway from now on, or all that wait go on. False when it was so before."""

    def finish_session(self, session_id: str, headers: Mapping[str, str]) -> bool:
        """Closes a trajectory of the caller, whose key is in ``headers``; False where there is none."""


@dataclass(frozen=True, slots=True)
class RegistryDeps:
    """Wired by app.py."""

    fleet: Fleet
    live: LiveSteps


class RegisterWorker(BaseModel):
    """Body of ``POST /workers``. Fields of other routers that mean nothing here (labels, cost, ...) are
    accepted.
    """

    model_config = ConfigDict(extra="allow")

    url: str = Field(min_length=1, max_length=2048, examples=["http://10.0.0.7:30000"])
    name: str | None = Field(default=None, description="Shown in X-Heddle-Worker; host:port if not given.")
    model_id: str | None = None
    api_key: str | None = None
    worker_type: Literal["regular", "prefill", "decode"] = "regular"
    kind: EngineKind | None = None
    degree: int | None = Field(default=None, ge=1, description="MP degree in GPUs, if it cannot be asked.")
    slots: int | None = Field(default=None, ge=1)
    kv_tokens: int | None = Field(default=None, ge=0)
    engine_priority: PrioritySense | None = None
    shim_url: str | None = Field(
        default=None,
        max_length=2048,
        description="Of the shim that moves its KV.",
        examples=["http://10.0.0.7:31900"],
    )


class AbortBody(BaseModel):
    """Body of ``POST /abort_request``. Other fields of SGLang's are accepted."""

    model_config = ConfigDict(extra="allow")

    rid: str | None = Field(default=None, max_length=512)
    abort_all: bool = False


def registry_router(deps: RegistryDeps, dependencies: Sequence[Depends] = ()) -> APIRouter:
    """The operator's routes. ``dependencies``: the admin key's check."""
    router = APIRouter(tags=["worker registry"], dependencies=list(dependencies))
    _add_worker_routes(router, deps.fleet)
    _add_legacy_routes(router, deps.fleet)
    _add_control_routes(router, deps)
    return router


def session_router(deps: RegistryDeps, dependencies: Sequence[Depends] = ()) -> APIRouter:
    """What an agent may call. ``dependencies``: the data key's check."""
    router = APIRouter(tags=["sessions"], dependencies=list(dependencies))

    @router.post("/finish_session")
    async def finish_session(request: Request, session_id: str) -> dict[str, Any]:
        """Closes a trajectory. One that is unknown, or closed already, is no error."""
        finished = deps.live.finish_session(session_id, request.headers)
        return {"session_id": session_id, "finished": finished}

    return router


def _add_worker_routes(router: APIRouter, fleet: Fleet) -> None:
    @router.post("/workers", status_code=202, response_model=None)
    async def register(body: RegisterWorker) -> Response:
        """Adds a worker, which may come up later. The same URL again gives the same worker."""
        if body.worker_type != "regular":
            return refusal(
                400, "worker_type_unsupported", "only regular workers: prefill and decode are not routed"
            )
        try:
            view = await fleet.add(
                WorkerSpec(
                    url=body.url,
                    name=body.name,
                    kind=body.kind,
                    model=body.model_id,
                    degree=body.degree,
                    slots=body.slots,
                    kv_tokens=body.kv_tokens,
                    priority=body.engine_priority,
                    api_key=body.api_key,
                    shim_url=body.shim_url,
                )
            )
        except (AddressRefused, FleetFull, ValueError) as error:
            return _add_refusal(error)
        location = f"/workers/{view.worker_id}"
        return JSONResponse(
            {"status": "accepted", "worker_id": str(view.worker_id), "url": view.url, "location": location},
            status_code=202,
            headers={"location": location},
        )

    @router.get("/workers")
    async def workers() -> dict[str, Any]:
        views = fleet.list()
        return {"workers": [_worker_json(view) for view in views], "total": len(views)}

    @router.get("/workers/{which:path}", response_model=None)
    async def worker(which: str) -> Response:
        """``which``: an id, or the worker's URL."""
        view = _lookup(fleet, which)
        return unknown(which) if view is None else JSONResponse(_worker_json(view))

    @router.post("/workers/{worker_id}/report", status_code=204, response_model=None)
    async def report(worker_id: int, body: WorkerReport) -> Response:
        """A worker's shim tells of its engine, about once a second. 404: not known, or another's id: register
        again. 410: it was taken out: stay away until it is known again.
        """
        try:
            fleet.take_report(worker_id, body)
        except WorkerTakenOut as error:
            return refusal(410, "worker_taken_out", str(error))
        except (UnknownWorker, AddressRefused):
            return unknown(str(worker_id))
        return Response(status_code=204)

    @router.delete("/workers/{which:path}", status_code=202, response_model=None)
    async def remove(which: str, leaves: bool = False) -> Response:
        """Drains the worker: no new steps, the running ones may end, then it is removed. Its shim, where it
        has one, is told to stay away; ``leaves``: it is the shim that asks, because it ends.
        """
        view = _lookup(fleet, which)
        if view is None:
            return unknown(which)
        view = fleet.drain(view.worker_id, stays_out=not leaves)
        answer = {"status": "accepted", "worker_id": str(view.worker_id), "state": str(view.state)}
        return JSONResponse(answer, status_code=202)


def _add_legacy_routes(router: APIRouter, fleet: Fleet) -> None:
    @router.post("/add_worker", response_model=None)
    async def add_worker(url: str, api_key: str | None = None) -> Response:
        try:
            view = await fleet.add(WorkerSpec(url=url, api_key=api_key))
        except (AddressRefused, FleetFull, ValueError) as error:
            return _add_refusal(error)
        return PlainTextResponse(f"Successfully added worker: {view.url}")

    @router.post("/remove_worker", response_model=None)
    async def remove_worker(url: str) -> Response:
        view = _lookup(fleet, url)
        if view is None:
            return unknown(url)
        fleet.drain(view.worker_id)
        return PlainTextResponse(f"Successfully removed worker: {view.url}")

    @router.get("/list_workers")
    async def list_workers() -> dict[str, list[str]]:
        return {"urls": list(dict.fromkeys(view.url for view in fleet.list()))}


def _add_control_routes(router: APIRouter, deps: RegistryDeps) -> None:
    fleet = deps.fleet

    @router.post("/abort_request", response_model=None)
    async def abort_request(body: AbortBody) -> Response:
        """Aborts one request wherever it is, or all. Engines match ids by prefix: only whole, own ids are
        sent.
        """
        if body.abort_all:
            waiting = deps.live.end_waiting(None)
            replies = await fan_out(
                fleet, "/abort_request", needs=lambda has: has.abort, body={"rid": "", "abort_all": True}
            )
            # Engines that know no aborts lost the connections of their steps instead.
            told = [reply for reply in replies if reply.fate is not Fate.UNSUPPORTED]
            status = overall_status(told) if told else 200
            return fan_out_answer(replies, status, waiting_aborted=waiting)
        if not body.rid:
            return refusal(400, "rid_missing", "give rid, or abort_all: true")
        waiting = deps.live.end_waiting(body.rid)
        replies = []
        for attempt in deps.live.attempts_of(body.rid):
            endpoint = fleet.worker(attempt.worker_id, attempt.generation)
            if endpoint is not None and endpoint.features.abort:
                replies.append(await post(fleet, endpoint, "/abort_request", body={"rid": attempt.rid}))
        return fan_out_answer(replies, overall_status(replies) if replies else 200, waiting_aborted=waiting)

    @router.get("/flush_cache", response_model=None)
    @router.post("/flush_cache", response_model=None)
    async def flush_cache(
        timeout: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
    ) -> Response:
        """400 where an engine is not idle, as a single engine answers."""
        params = {"timeout": f"{timeout:g}"} if timeout > 0 else None
        replies = await fan_out(fleet, "/flush_cache", needs=lambda has: has.flush, params=params)
        return fan_out_answer(replies, overall_status(replies))

    @router.post("/pause_generation", response_model=None)
    async def pause_generation(body: dict[str, Any] | None = None) -> Response:
        """Dispatch stops first, so that no engine is sent a step behind its pause. Steps that come meanwhile
        wait; they fail by it no more than they would at a single engine. Where no engine paused, all goes on.
        """
        is_new = deps.live.pause_dispatch(True)
        replies: list[WorkerReply] = []
        try:
            replies = await fan_out(fleet, "/pause_generation", needs=lambda has: has.pause, body=body or {})
        finally:
            if is_new and not any(reply.fate is Fate.DONE for reply in replies):
                deps.live.pause_dispatch(False)
        return fan_out_answer(replies, overall_status(replies))

    @router.post("/continue_generation", response_model=None)
    async def continue_generation(body: dict[str, Any] | None = None) -> Response:
        """The engines go on, then what waited in the gateway. An engine that did not hear it makes its steps
        wait, or fail, by itself.
        """
        try:
            replies = await fan_out(
                fleet, "/continue_generation", needs=lambda has: has.pause, body=body or {}
            )
        finally:
            deps.live.pause_dispatch(False)
        return fan_out_answer(replies, overall_status(replies))

    @router.get("/get_loads")
    @router.get("/v1/loads")
    async def loads(dp_rank: int | None = None) -> dict[str, Any]:
        """Asked of every worker now. ``loads`` has SGLang's fields for each rank, ``workers`` a line for
        each worker.
        """
        found = await ask_loads(fleet)
        answered = sum(load.sample is not None for load in found)
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "loads": [rank for load in found for rank in _ranks(load) if dp_rank in {None, rank["dp_rank"]}],
            "workers": [_load_line(load) for load in found],
            "total_workers": len(found),
            "successful": answered,
            "failed": len(found) - answered,
        }


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def unknown(which: str) -> JSONResponse:
    return refusal(404, "unknown_worker", f"no worker {which[:200]!r}; GET /workers lists them")


def _add_refusal(error: AddressRefused | FleetFull | ValueError) -> JSONResponse:
    if isinstance(error, FleetFull):
        return refusal(409, "fleet_full", str(error))
    return refusal(400, "worker_refused", str(error))


def _lookup(fleet: Fleet, which: str) -> WorkerView | None:
    try:
        return fleet.get(int(which)) if which.isdecimal() else fleet.find(which)
    except (UnknownWorker, AddressRefused):
        return None


def _worker_json(view: WorkerView) -> dict[str, Any]:
    """The fields that clients of sglang's model gateway read, then ours."""
    return {
        "id": str(view.worker_id),
        "url": view.url,
        "model_id": view.models[0] if view.models else "unknown",
        "worker_type": "regular",
        "is_healthy": view.state in {WorkerState.ACTIVE, WorkerState.SUSPECT},
        "load": (view.running or 0) + (view.waiting or 0),
        "connection_mode": "http",
        "runtime_type": view.kind,
        "name": view.name,
        "state": view.state,
        "generation": view.generation,
        "models": view.models,
        "degree": view.degree,
        "slots": view.slots,
        "kv_tokens": view.kv_tokens,
        "emulated": view.emulated,
        "last_error": view.last_error,
    }


def fan_out_answer(replies: list[WorkerReply], status: int, **more: int) -> JSONResponse:
    """What became of a control at each worker."""
    headers = {"retry-after": str(NO_WORKER_RETRY_AFTER_S)} if status == 503 else None
    return JSONResponse(
        {
            "success": status == 200,
            **more,
            "done": sum(reply.fate is Fate.DONE for reply in replies),
            "workers": [
                {
                    "id": str(reply.worker_id),
                    "name": reply.name,
                    "url": reply.url,
                    "result": reply.fate,
                    "status": reply.status,
                    "message": reply.error or reply.text,
                }
                for reply in replies
            ],
        },
        status_code=status,
        headers=headers,
    )


def _ranks(load: WorkerLoad) -> list[dict[str, Any]]:
    """SGLang's own entries, or one made from the counts of another engine; each says whose it is."""
    sample = load.sample
    if sample is None:
        return []
    counts = {
        "num_running_reqs": sample.running,
        "num_waiting_reqs": sample.waiting,
        "num_used_tokens": sample.kv_used,
    }
    owner = {"worker_id": str(load.endpoint.worker_id), "worker": load.endpoint.base_url}
    return [{"dp_rank": 0, **rank, **owner} for rank in sample.ranks or (counts,)]


def _load_line(load: WorkerLoad) -> dict[str, Any]:
    sample = load.sample
    return {
        "worker": load.endpoint.base_url,
        "worker_id": str(load.endpoint.worker_id),
        "worker_type": "regular",
        # -1 is what sglang's model gateway says of a worker that did not answer.
        "load": -1 if sample is None else sample.running + sample.waiting,
        "running": None if sample is None else sample.running,
        "waiting": None if sample is None else sample.waiting,
        "kv_used": None if sample is None else sample.kv_used,
        "error": load.error,
    }
