"""One arm of the comparison: a policy on a fresh gateway and fresh workers, a rollout, and what it showed."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from heddle_cli.child_process import Child
from heddle_cli.demo.emulated_cost import WorkerCost
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory
from heddle_cli.replay.rollout import Progress, RolloutReport, run_rollout

START_TIMEOUT_S: Final = 60.0
STOP_GRACE_S: Final = 10.0
POLL_S: Final = 0.05
PAGE: Final = 200
# "The longest" whose queueing is shown: this share of the trajectories, by output tokens.
LONGEST_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Policy:
    """A name for the table and the gateway's policy options."""

    name: str
    order: str
    placement: str
    admission: str

    def options(self) -> list[str]:
        return ["--order", self.order, "--placement", self.placement, "--admission", self.admission]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The emulated workers of every arm."""

    tp: str
    slots: int
    speed: float
    profile: Path | None

    def options(self) -> list[str]:
        options = ["--tp", self.tp, "--slots", str(self.slots), "--speed", str(self.speed)]
        options += ["--base-port", "0"]
        return options + (["--profile", str(self.profile)] if self.profile else [])


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What one arm showed. Times are emulated seconds."""

    policy: Policy
    report: RolloutReport
    workers: tuple[WorkerCost, ...]
    queue_longest_s: float
    """Mean time that the longest trajectories' steps were held in the gateway, per trajectory."""
    recognised: int
    """Trajectories the gateway made of the untagged requests."""
    steps_started: int
    steps_in_flight: int
    steps_ended: Mapping[str, int]
    """The gateway's own counts, at the end of the rollout; ended by outcome."""


async def run_arm(
    policy: Policy,
    cluster: Cluster,
    trajectories: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    on_progress: Callable[[Progress], None],
    scratch: Path,
) -> ArmResult:
    """Raises CommandFailed when a part does not start or dies."""
    children: list[Child] = []
    try:
        emulated = await Child.start("emulate", cluster.options(), listens=True)
        children.append(emulated)
        urls = (await emulated.ready_line(START_TIMEOUT_S))["workers"]
        port = free_port()
        options = ["--port", str(port), "--database", str(scratch / f"{policy.placement}.db")]
        options += policy.options() + [part for url in urls for part in ("--worker", url)]
        gateway = await Child.start("gateway", options, log=scratch / f"{policy.placement}.log")
        children.append(gateway)
        base_url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30.0) as http:
            await wait_for_workers(http, gateway, len(urls))
            workers = [WorkerCost.of((await http.get(f"{url}/server_info")).json()) for url in urls]
            report = await watched(
                run_rollout(f"{base_url}/v1", trajectories, settings, on_progress=on_progress), children
            )
            stats = (await http.get("/admin/v1/stats")).raise_for_status().json()
            known = await _history(http, len(trajectories))
            queued = await _queue_of_longest(http, known, len(trajectories))
        return ArmResult(
            policy=policy,
            report=report,
            workers=tuple(workers),
            queue_longest_s=queued * cluster.speed,
            recognised=len(known),
            steps_started=stats["steps"]["started"],
            steps_in_flight=stats["steps"]["in_flight"],
            steps_ended=stats["steps"]["ended"],
        )
    finally:
        for child in reversed(children):
            await child.stop(STOP_GRACE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def watched(rollout: Any, children: Sequence[Child]) -> RolloutReport:
    """The rollout's report; CommandFailed at once when a part dies under it."""
    running = asyncio.ensure_future(rollout)
    await asyncio.wait({running, *(child.ended for child in children)}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        running.cancel()
        await asyncio.wait({running})
        dead = next(child for child in children if child.exit_code is not None)
        raise CommandFailed(Exit.FAILED, dead.death())
    result: RolloutReport = running.result()
    return result


async def wait_for_workers(http: httpx.AsyncClient, gateway: Child, wanted: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    active = 0
    while loop.time() < deadline:
        if gateway.exit_code is not None:
            raise CommandFailed(Exit.FAILED, gateway.death())
        try:
            active = (await http.get("/ready")).json()["workers"].get("active", 0)
        except httpx.TransportError:
            active = 0  # not listening yet
        if active >= wanted:
            return
        await asyncio.sleep(POLL_S)
    raise CommandFailed(Exit.FAILED, f"{active} of {wanted} emulated workers became active")


async def _history(http: httpx.AsyncClient, expected: int) -> list[dict[str, Any]]:
    """All trajectories that the gateway knows of, by output tokens, most first."""
    known: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query = {"limit": PAGE} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/admin/v1/trajectories", params=query)).raise_for_status().json()
        known += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return sorted(known, key=lambda one: -int(one["output_tokens"]))


async def _queue_of_longest(http: httpx.AsyncClient, known: Sequence[dict[str, Any]], total: int) -> float:
    """Real seconds from arrival to dispatch, summed over a trajectory's steps; mean over the longest."""
    longest = known[: max(1, round(LONGEST_SHARE * total))]
    waits = []
    for one in longest:
        path = "/admin/v1/trajectories/" + one["trajectory_id"]
        detail = (await http.get(path, params={"steps_limit": 1000})).raise_for_status().json()
        waits.append(
            sum(
                step["dispatched_at"] - step["arrived_at"]
                for step in detail["steps"]["items"]
                if step["dispatched_at"] is not None
            )
        )
    return sum(waits) / len(waits) if waits else 0.0
