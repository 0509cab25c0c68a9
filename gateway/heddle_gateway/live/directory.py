"""Which trajectories are live, under which number the core knows them, and what people want to see of them.

Invariants: a handle is never used twice; an entry leaves when the core says Expire, and only then; entries
are kept in the order they were last seen. What the core knows (phase, counts, home) is asked of the core,
not kept here.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol


class Who(Protocol):
    """What identity says of a request's trajectory."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def sample(self) -> int | None: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def step(self) -> int: ...
    @property
    def segment(self) -> int: ...


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
        self._handles = count(1)
        self._group_handles = count(1)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[LiveTrajectory]:
        """Least recently seen first."""
        return iter(self._by_key.values())

    def open(self, who: Who, *, tenant: str, model: str | None) -> LiveTrajectory:
        """The entry of this request's trajectory, made if there is none, marked as seen now."""
        key = (tenant, who.trajectory_id)
        now = time.time()
        live = self._by_key.pop(key, None)
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
        del self._by_key[(live.tenant, live.trajectory_id)]
        namesakes = self._by_id[live.trajectory_id]
        del namesakes[live.tenant]
        if not namesakes:
            del self._by_id[live.trajectory_id]
        if live.group_id is not None:
            key = (live.tenant, live.group_id)
            _, members = self._groups[key]
            members.discard(handle)
            if not members:
                del self._groups[key]
        return live

    def _join(self, tenant: str, group_id: str | None, handle: int) -> int | None:
        if group_id is None:
            return None
        key = (tenant, group_id)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = (next(self._group_handles), set())
        group[1].add(handle)
        return group[0]
