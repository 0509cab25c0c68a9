"""The fleet as the admin API speaks of it: its views and errors in the contract's words."""

from dataclasses import fields
from http import HTTPStatus

from heddle_contracts.admin import WorkerAdd, WorkerView

from heddle_gateway.fleet import worker as fleet_worker
from heddle_gateway.fleet.errors import AddressRefused, FleetFull, UnknownWorker
from heddle_gateway.fleet.events import WorkerSpec
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense
from heddle_gateway.fleet.registry import Fleet
from heddle_gateway.routes.admin_problem import AdminProblem


class FleetControl:
    """Lists, adds and drains workers; see `routes.admin.WorkerControl`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def workers(self) -> list[WorkerView]:
        return [_shown(view) for view in self._fleet.list()]

    def worker(self, worker_id: int) -> WorkerView | None:
        try:
            return _shown(self._fleet.get(worker_id))
        except UnknownWorker:
            return None

    async def add(self, wanted: WorkerAdd) -> tuple[WorkerView, bool]:
        """The worker and whether it is new. Raises AdminProblem for a refused URL or a full fleet."""
        known = {view.worker_id for view in self._fleet.list()}
        try:
            view = await self._fleet.add(_spec(wanted))
        except ValueError as error:
            field = str(error).partition(":")[0]
            raise AdminProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field, fix=f"Send another {field}."
            ) from error
        except AddressRefused as error:
            raise AdminProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field="url", fix=error.reason
            ) from error
        except FleetFull as error:
            raise AdminProblem(
                HTTPStatus.CONFLICT, str(error), fix="Drain a worker that is not needed any more."
            ) from error
        return _shown(view), view.worker_id not in known

    async def drain(self, worker_id: int) -> WorkerView | None:
        try:
            return _shown(self._fleet.drain(worker_id))
        except UnknownWorker:
            return None


def _spec(wanted: WorkerAdd) -> WorkerSpec:
    return WorkerSpec(
        url=wanted.url,
        name=wanted.name,
        kind=EngineKind(wanted.kind) if wanted.kind else None,
        model=wanted.model,
        degree=wanted.degree,
        slots=wanted.slots,
        kv_tokens=wanted.kv_tokens,
        priority=PrioritySense(wanted.priority) if wanted.priority else None,
        api_key=wanted.api_key,
    )


def _abilities(view: fleet_worker.WorkerView) -> list[str]:
    """Names of the features that are simply there or not; ``migrate`` where a shim moves its KV."""
    found = [one.name for one in fields(Features) if getattr(view.features, one.name, None) is True]
    return [*found, "migrate"] if view.shim_url is not None else found


def _shown(view: fleet_worker.WorkerView) -> WorkerView:
    return WorkerView(
        id=view.worker_id,
        url=view.url,
        name=view.name,
        state=view.state.value,
        generation=view.generation,
        kind=view.kind.value if view.kind else None,
        models=list(view.models),
        degree=view.degree,
        slots=view.slots,
        kv_tokens=view.kv_tokens,
        features=_abilities(view),
        priority=view.features.priority.value if view.features else None,
        version=view.version,
        emulated=view.emulated,
        running=view.running,
        waiting=view.waiting,
        kv_used=view.kv_used,
        last_error=view.last_error,
    )
