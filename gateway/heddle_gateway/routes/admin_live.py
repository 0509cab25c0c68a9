"""The live trajectories as the admin API lists them: the directory's entries with the core's view laid over
them.
"""

from collections.abc import Callable, Sequence

from heddle_contracts.admin import LiveTrajectory, Phase, TrajectoryKey

from heddle_gateway.live.directory import Directory
from heddle_gateway.live.driver import Driver
from heddle_gateway.plans.explain import Whereabouts
from heddle_gateway.routes.admin_listing import LiveEntry


class LiveListing:
    """``worker_name``: name of a worker by its id, for the home that the core knows by number."""

    def __init__(self, driver: Driver, worker_name: Callable[[int], str | None]) -> None:
        self._driver = driver
        self._directory: Directory = driver.directory
        self._worker_name = worker_name

    def entries(self) -> Sequence[LiveEntry]:
        """A snapshot of which there are; the entries themselves go on changing."""
        return list(self._directory)

    def holds(self, key: TrajectoryKey) -> bool:
        return self._directory.find(key.trajectory_id, key.tenant) is not None

    def named(self, trajectory_id: str) -> Sequence[TrajectoryKey]:
        """One per tenant that uses this id now."""
        return [TrajectoryKey(live.tenant, trajectory_id) for live in self._directory.named(trajectory_id)]

    def view(self, key: TrajectoryKey) -> LiveTrajectory | None:
        """None for one that is not held (any more)."""
        live = self._directory.find(key.trajectory_id, key.tenant)
        seen = self._driver.trajectory_view(live) if live is not None else None
        if live is None or seen is None:
            return None
        home = seen["home"]
        levels = [step["level"] for step in seen["live_steps"] if step["level"] is not None]
        return LiveTrajectory(
            tenant=live.tenant,
            trajectory_id=live.trajectory_id,
            group_id=live.group_id,
            sample=live.sample,
            parent_id=live.parent_id,
            source=live.source,
            model=live.model,
            phase=Phase(seen["phase"]),
            worker=self._worker_name(home) if home is not None else live.worker,
            steps=live.step + 1,
            live_steps=len(seen["live_steps"]),
            first_seen=live.started_at,
            last_seen=live.last_seen_at,
            predicted_remaining=seen["remaining"],
            level=max(levels, default=None),
        )

    def whereabouts(self) -> dict[str, Whereabouts]:
        """All active trajectories by id; of two tenants' with one id, either."""
        rows = sorted(self._driver.active(), key=lambda row: -row[1])
        found = {}
        for rank, (handle, remaining, _, _, _, home) in enumerate(rows):
            live = self._directory.by_handle(handle)
            if live is not None:
                name = self._worker_name(home) if home is not None else None
                found[live.trajectory_id] = Whereabouts(float(remaining), rank, name)
        return found

    def finish(self, key: TrajectoryKey) -> bool:
        """No further step is expected; False if it is not held."""
        live = self._directory.find(key.trajectory_id, key.tenant)
        if live is None:
            return False
        self._driver.finish(live)
        return True
