"""What the planner is told of the live workers and trajectories when it is asked for a plan."""

from collections.abc import Callable
from typing import Any, Protocol

from heddle_contracts.planning import (
    MAX_LENGTHS,
    ActiveTrajectory,
    PlanCompute,
    PlanningRequest,
    PlanReason,
    PlanWorker,
)


class LiveCore(Protocol):
    """The driven decision core (live.driver.Driver)."""

    def active(self) -> list[tuple[int, int, float | None, int, int, int | None]]: ...
    def worker_views(self) -> list[dict[str, Any]]: ...
    def policy(self) -> dict[str, Any]: ...


class Named(Protocol):
    """A live trajectory (live.directory.LiveTrajectory)."""

    @property
    def tenant(self) -> str: ...
    @property
    def trajectory_id(self) -> str: ...
    @property
    def group_id(self) -> str | None: ...


class Window:
    """What is live now."""

    def __init__(
        self,
        core: LiveCore,
        trajectory: Callable[[int], Named | None],
        worker_name: Callable[[int], str | None],
    ) -> None:
        self._core = core
        self._trajectory = trajectory
        self._worker_name = worker_name

    def workers(self) -> list[dict[str, Any]]:
        """The core's views of workers that take steps."""
        return [view for view in self._core.worker_views() if view["state"] == "active"]

    def names(self) -> dict[int, str]:
        found = {view["worker"]: self._worker_name(view["worker"]) for view in self._core.worker_views()}
        return {worker: name for worker, name in found.items() if name is not None}

    def request(self, asked: PlanCompute, reason: PlanReason) -> PlanningRequest:
        """A question for a plan."""
        names = self.names()
        workers = tuple(
            PlanWorker(
                id=view["worker"],
                name=names.get(view["worker"], str(view["worker"])),
                homed=view["homed"],
                homed_remaining=view["homed_remaining"],
                **{
                    name: view[name]
                    for name in (
                        "degree",
                        "slots",
                        "kv_tokens",
                        "token_us",
                        "token_us_per_seq",
                        "token_us_per_context_token",
                        "prefill_tokens_per_s",
                    )
                },
            )
            for view in self.workers()
        )
        return PlanningRequest.model_construct(
            asked=asked,
            reason=reason,
            workers=workers,
            active=() if asked.lengths is not None else self._active(),
            policy=self._core.policy(),
        )

    def _active(self) -> tuple[ActiveTrajectory, ...]:
        rows = self._core.active()
        if len(rows) > MAX_LENGTHS:
            rows = sorted(rows, key=lambda row: -row[1])[:MAX_LENGTHS]
        found = []
        for handle, remaining, sigma, context, generated, _ in rows:
            live = self._trajectory(handle)
            if live is None:
                continue
            # Not validated: the core's own numbers, and there may be many.
            found.append(
                ActiveTrajectory.model_construct(
                    tenant=live.tenant,
                    trajectory_id=live.trajectory_id,
                    group_id=live.group_id,
                    remaining=float(remaining),
                    sigma=sigma,
                    context_tokens=context,
                    generated=generated,
                )
            )
        return tuple(found)
