"""A whole cluster in processes of its own: gateway, planner, Redis, PostgreSQL, workers with their shims."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.system.conftest import WAIT_S, Engine, Gateway, Part, Parts, free_port, wait_until

from .agents import MODEL, Rollout
from .relay import Relay

WORKERS = 3
SPEED = 20.0
PAGE = 16
FIRST_PAGE = 6000
"""Bytes to a receiver that hold the offer and the first page of a move, and not the last."""
_namespaces = count()

ENGINE = ("--speed", str(SPEED), "--model", MODEL, "--slots", "8", "--page-size", str(PAGE))


@dataclass
class Shim:
    """What the gateway and other shims reach of a worker's shim, each through a relay."""

    http: Relay
    pages: Relay


@dataclass
class Cluster:
    """``start`` first. ``database``: URL of a PostgreSQL database of its own."""

    parts: Parts
    stack: AsyncExitStack
    """Of what is opened here."""
    folder: Path
    redis: Any
    postgresql: Any
    options: tuple[str, ...] = ()
    """Of the gateway."""
    engines: list[Engine] = field(default_factory=list)
    shims: list[Shim] = field(default_factory=list)
    """One an engine, where there are relays."""
    database: str = ""
    port: int = field(default_factory=free_port)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    """More variables, by "gateway", "planner" and "engine-0" on."""
    lives: int = 0
    """Gateways so far."""

    def __post_init__(self) -> None:
        self.database = self.database or self.postgresql.new_database()
        self._namespace = f"faults-{self.folder.name}-{next(_namespaces)}"
        self._planner_port = 0
        self.gateway: Gateway
        self.planner: Part

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, *, relayed: bool = False) -> None:
        """``relayed``: whoever moves KV does it through relays."""
        for number in range(WORKERS):
            environment = self.environments.get(f"engine-{number}")
            engine = await self.parts.engine(*ENGINE, environment=environment)
            self.engines.append(engine)
        await self.start_planner()
        await self.start_gateway(relayed=relayed)
        if relayed:
            for engine in self.engines:
                await self._add_behind_relays(engine)
            await wait_until(self._all_serve, "all workers in service")

    async def start_planner(self) -> None:
        arguments = ("planner", "--port", str(self._planner_port))
        self.planner = await self.parts.run(*arguments, environment=self.environments.get("planner"))
        said = json.loads(await self.planner.line("ready"))
        self._planner_port = int(said["planner"].rpartition(":")[2])  # a new one takes the same

    async def start_gateway(self, *, relayed: bool = False) -> None:
        """Again after a kill: on the same port, with a journal of its own."""
        self.lives += 1
        self.gateway = await self.parts.gateway(
            [] if relayed else [engine.url for engine in self.engines],
            *("--redis", self.redis.url, "--database", self.database),
            *("--planner", f"http://127.0.0.1:{self._planner_port}"),
            *("--journal", str(self.journal)),
            *self.options,
            port=self.port,
            environment={
                "HEDDLE_NAMESPACE": self._namespace,
                "HEDDLE_PLAN_PERIOD_S": "1",
                # A loaded machine is not a planner that is away.
                "HEDDLE_PLANNER_TIMEOUT_S": "20",
                "HEDDLE_HISTORY_SPILL": str(self.folder / "spill"),
                **self.environments.get("gateway", {}),
            },
        )

    @property
    def journal(self) -> Path:
        """Of the gateway that was started last."""
        return self.folder / f"journal-{self.lives}.jsonl"

    def rollout(self) -> Rollout:
        """Agents that wait for the gateway as long as a test may."""
        limits = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=WAIT_S, limits=limits)
        self.stack.push_async_callback(http.aclose)
        return Rollout(http)

    async def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.gateway.http.get("/ready")).json()
        return found

    async def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the history."""
        connection = await asyncpg.connect(self.database)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    async def is_mirrored(self) -> bool:
        """Whether Redis has all that is live."""
        following = (await self.ready())["live_state"] == "following"
        return following and not await self.gateway.metric("heddle_live_state_behind")

    # ---------------------------------------------------------------- moves

    async def move(self, name: str, to: Engine, deadline_s: float | None = None) -> int:
        """Asks for a move, once the workers are linked; its number."""
        body: dict[str, Any] = {"trajectory_id": name, "to": to.name}
        if deadline_s is not None:
            body["deadline_s"] = deadline_s
        found: list[Any] = []

        async def taken() -> bool:
            answer = await self.gateway.http.post("/admin/v1/migrations", json=body)
            assert answer.status_code in {202, 409}, answer.text
            if answer.status_code == 409:
                assert "cannot" in answer.text, answer.text  # no link yet
                return False
            found.extend(answer.json()["items"])
            return True

        await wait_until(taken, f"a move of {name} to be taken")
        return max(int(move["id"]) for move in found)

    async def linked(self) -> None:
        """Waits until the gateway has heard of every worker's shim."""

        async def all_linked() -> bool:
            return await self.gateway.metric("heddle_core_workers_linked") == WORKERS

        await wait_until(all_linked, "every worker's shim to be asked")

    async def move_of(self, name: str, number: int) -> Any:
        """How this move is, or was, as the gateway shows it."""
        items = (await self.gateway.get("/migrations", trajectory_id=name, limit=1000))["items"]
        (found,) = [move for move in items if move["id"] == number]
        return found

    async def ended(self, name: str, number: int) -> Any:
        """Waits until this move is over; how."""
        final = {"landed", "failed", "cancelled", "expired"}

        async def over() -> bool:
            return (await self.move_of(name, number))["state"] in final

        await wait_until(over, f"the end of move {number}")
        return await self.move_of(name, number)

    async def shim_says(self, engine: Engine, name: str) -> Any | None:
        """The newest move of this trajectory from ``engine``, asked past every relay."""
        items = (await self.gateway.http.get(f"{engine.url}/shim/v1/migrations")).json()["items"]
        return next((move for move in items if move["trajectory"] == name), None)

    def shim_of(self, engine: Engine) -> Shim:
        return self.shims[self.engines.index(engine)]

    async def move_half(self, name: str, source: Engine, target: Engine, deadline_s: float) -> int:
        """A move whose first page is at the target and whose last one is not, until the relay of its pages is
        healed; its number.
        """
        pages = self.shim_of(target).pages
        await self.linked()
        pages.cut_after(FIRST_PAGE)
        before = pages.passed
        number = await self.move(name, target, deadline_s)

        async def moving() -> bool:
            found = await self.shim_says(source, name)
            return found is not None and found["state"] == "moving" and pages.passed - before >= FIRST_PAGE

        await wait_until(moving, f"pages of {name} on the way")
        return number

    def engine_of(self, name: str) -> Engine:
        """By its name in X-Heddle-Worker."""
        (found,) = [engine for engine in self.engines if engine.name == name]
        return found

    def other_than(self, engine: Engine) -> Engine:
        return next(other for other in self.engines if other is not engine)

    # ---------------------------------------------------------------- inside

    async def _all_serve(self) -> bool:
        return (await self.ready())["workers"]["active"] == WORKERS

    async def _add_behind_relays(self, engine: Engine) -> None:
        said = (await self.gateway.http.get(f"{engine.url}/shim/v1/handshake")).json()
        address = said["transports"]["tcp"]
        pages = await self.stack.enter_async_context(Relay(int(address.rpartition(":")[2])))
        names = {address.encode(): f"127.0.0.1:{pages.port}".encode()}
        relay = await self.stack.enter_async_context(Relay(engine.port, names))
        self.shims.append(Shim(relay, pages))
        body = {"url": engine.url, "kind": "sglang", "shim_url": relay.url}
        (await self.gateway.http.post("/workers", json=body)).raise_for_status()


def faked_clock(library: str, file: Path) -> Mapping[str, str]:
    """Variables of a process whose wall clock is off by what ``file`` says, such as "+300", read anew each
    second. Monotonic time stays as it is.
    """
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
