"""Which trajectories are live, under which number the core knows them, and what people want to see of them.

Invariants: a handle is never used twice; an entry that the core has heard of leaves when the core says
Expire, and only then; entries are kept in the order they were last seen. What the core knows (phase, counts,
home) is asked of the core, not kept here.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from heddle_contracts.predictions import ANNOUNCED_TENANT
from heddle_contracts.steps import StepIdentity


@dataclass(slots=True)
class LiveTrajectory:
    """One live trajectory. ``*_at``: seconds of the Unix epoch; ``last_ended``: monotonic seconds."""

    handle: int
    group: int | None
    trajectory_id: str
    tenant: str
    source: str
    group_id: str | None
    sample: int | None
    parent_id: str | None
    model: str | None
    started_at: float
    last_seen_at: float
    step: int = 0
    segment: int = 0
    worker: str | None = None
    last_ended: float | None = None
    last_rid: str | None = None
    """Under which the engine knows its last step."""
    returns_to: str | None = None
    """Name of the worker that held its KV when an earlier process died; only before its first step here."""
    has_arrived: bool = False
    """A step of it has come; else it was only announced."""
    rollout: str | None = None
    """Id of the batch that announced it."""


class Directory:
    """Live trajectories by (tenant, id) and by the core's handle.

    Two tenants may use one id: explicit ids are chosen by callers. A group lives as long as one of its
    members.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], LiveTrajectory] = {}
        self._by_handle: dict[int, LiveTrajectory] = {}
        self._by_id: dict[str, dict[str, LiveTrajectory]] = {}
        self._groups: dict[tuple[str, str], tuple[int, set[int]]] = {}
        self._announced: dict[str, LiveTrajectory] = {}
        self._returning: dict[tuple[str, str], str] = {}
        self._handles = count(1)
        self._group_handles = count(1)

    def clear(self) -> None:
        """Forgets all entries. Handles go on: none is used twice."""
        for table in (self._by_key, self._by_handle, self._by_id, self._groups, self._announced):
            table.clear()
        self._returning.clear()

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def total(self) -> int:
        """Announced ones that have not come included."""
        return len(self._by_handle)

    def __iter__(self) -> Iterator[LiveTrajectory]:
        """Least recently seen first."""
        return iter(self._by_key.values())

    def expect_back(self, tenant: str, trajectory_id: str, home: str) -> None:
        """A trajectory of an earlier process had its KV on this worker. Call it before the first request."""
        self._returning[tenant, trajectory_id] = home

    @property
    def homes_awaited(self) -> set[str]:
        """Workers that trajectories of an earlier process had their KV on and have not come back to."""
        return set(self._returning.values())

    def open(self, who: StepIdentity, *, tenant: str, model: str | None) -> LiveTrajectory:
        """The entry of this request's trajectory, made if there is none, marked as seen now."""
        key = (tenant, who.trajectory_id)
        now = time.time()
        live = self._by_key.pop(key, None)
        if live is None and (live := self._announced.pop(who.trajectory_id, None)) is not None:
            self._claim(live, tenant)
            live.source = who.source
            live.returns_to = self._returning.pop(key, None) if self._returning else None
        if live is None:
            handle = next(self._handles)
            live = LiveTrajectory(
                handle=handle,
                group=self._join(tenant, who.group_id, handle),
                trajectory_id=who.trajectory_id,
                tenant=tenant,
                source=who.source,
                group_id=who.group_id,
                sample=who.sample,
                parent_id=who.parent_id,
                model=model,
                started_at=now,
                last_seen_at=now,
                returns_to=self._returning.pop(key, None) if self._returning else None,
            )
            self._by_handle[handle] = live
            self._by_id.setdefault(who.trajectory_id, {})[tenant] = live
        self._by_key[key] = live  # last in the order
        live.last_seen_at = now
        # A repeat of an earlier step does not take the trajectory back.
        live.step = max(live.step, who.step)
        live.segment = max(live.segment, who.segment)
        if model is not None:
            live.model = model
        return live

    def announced(self, trajectory_id: str) -> LiveTrajectory | None:
        """One that was announced and has not come."""
        return self._announced.get(trajectory_id)

    def announce(
        self, trajectory_id: str, *, group_id: str, sample: int, model: str | None, rollout: str
    ) -> LiveTrajectory:
        """An entry for a trajectory that will come. Nobody's yet: it becomes the first caller's who names the
        id, which only those know who were told it.
        """
        handle = next(self._handles)
        now = time.time()
        live = LiveTrajectory(
            handle=handle,
            group=self._join(ANNOUNCED_TENANT, group_id, handle),
            trajectory_id=trajectory_id,
            tenant=ANNOUNCED_TENANT,
            source="rollout",
            group_id=group_id,
            sample=sample,
            parent_id=None,
            model=model,
            started_at=now,
            last_seen_at=now,
            rollout=rollout,
        )
        self._by_handle[handle] = live
        self._announced[trajectory_id] = live
        return live

    def oldest(self) -> LiveTrajectory | None:
        """The entry seen longest ago."""
        return next(iter(self._by_key.values()), None)

    def put_last(self, live: LiveTrajectory) -> None:
        """As if it had been seen now."""
        key = (live.tenant, live.trajectory_id)
        self._by_key[key] = self._by_key.pop(key)

    def by_handle(self, handle: int) -> LiveTrajectory | None:
        return self._by_handle.get(handle)

    def find(self, trajectory_id: str, tenant: str) -> LiveTrajectory | None:
        return self._by_key.get((tenant, trajectory_id))

    def named(self, trajectory_id: str) -> list[LiveTrajectory]:
        """Those of this id, one per tenant that uses it."""
        return list(self._by_id.get(trajectory_id, {}).values())

    def forget(self, handle: int) -> LiveTrajectory | None:
        live = self._by_handle.pop(handle, None)
        if live is None:
            return None
        if self._announced.get(live.trajectory_id) is live:
            del self._announced[live.trajectory_id]
        else:
            del self._by_key[(live.tenant, live.trajectory_id)]
            namesakes = self._by_id[live.trajectory_id]
            del namesakes[live.tenant]
            if not namesakes:
                del self._by_id[live.trajectory_id]
        self._leave_group(live)
        return live

    def _claim(self, live: LiveTrajectory, tenant: str) -> None:
        """An announced trajectory has come, with its caller's key; its group keeps the core's number."""
        self._leave_group(live)
        live.tenant = tenant
        if live.group_id is not None and live.group is not None:
            group = self._groups.setdefault((tenant, live.group_id), (live.group, set()))
            group[1].add(live.handle)
        self._by_id.setdefault(live.trajectory_id, {})[tenant] = live

    def _leave_group(self, live: LiveTrajectory) -> None:
        if live.group_id is None:
            return
        key = (live.tenant, live.group_id)
        _, members = self._groups[key]
        members.discard(live.handle)
        if not members:
            del self._groups[key]

    def _join(self, tenant: str, group_id: str | None, handle: int) -> int | None:
        if group_id is None:
            return None
        key = (tenant, group_id)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = (next(self._group_handles), set())
        group[1].add(handle)
        return group[0]
