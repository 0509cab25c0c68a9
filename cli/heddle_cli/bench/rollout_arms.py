"""The arms of the rollout benchmark: each a fresh gateway on fresh emulated workers, and the same agents."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from heddle_cli.bench.process_usage import usage
from heddle_cli.bench.rollout_history import History, read_history
from heddle_cli.bench.rollout_journal import JournalSummary, summarise
from heddle_cli.bench.rollout_lateness import Lateness, lateness_of
from heddle_cli.child_process import Child
from heddle_cli.demo.arm import (
    START_TIMEOUT_S,
    STOP_GRACE_S,
    Cluster,
    Policy,
    free_port,
    wait_for_workers,
    watched,
)
from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory
from heddle_cli.replay.rollout import Progress, RolloutReport, run_rollout

HEDDLE: Final = Policy("heddle", order="longest_first", placement="by_rank", admission="working_set")
BASELINES: Final = (
    Policy("least_load", order="fcfs", placement="least_load", admission="unlimited"),
    Policy("sticky", order="fcfs", placement="sticky", admission="unlimited"),
    Policy("cache_aware", order="fcfs", placement="cache_aware", admission="unlimited"),
)
MOVED_PAGE: Final = ("--moved-page", "256")
"""A move in pages of 64 tokens costs this machine some 30 ms of processor time, at x20 most of a second."""
ARMS: Final = {policy.name: policy for policy in (HEDDLE, *BASELINES)}


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What one arm showed. ``core``: the decision core's counts at the end; ``planner``: of the gateway's
    metrics; ``core_policy``: the policy it began with; ``servers``: what each worker says of itself;
    ``cpu_s``: processor seconds of each part during the rollout; ``journal``: where one was kept.
    """

    policy: Policy
    report: RolloutReport
    lateness: Lateness
    history: History
    core_policy: Mapping[str, Any]
    core: Mapping[str, int]
    planner: Mapping[str, float]
    servers: Sequence[Mapping[str, Any]]
    cpu_s: Mapping[str, float]
    journal: JournalSummary | None


async def run_arm(
    policy: Policy,
    cluster: Cluster,
    trajectories: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    on_progress: Callable[[Progress], None],
    scratch: Path,
) -> ArmResult:
    """Raises CommandFailed when a part does not start or dies. Heddle gets its planner, and the batch is
    announced to it, as a trainer would; baselines need neither.
    """
    planned = policy is HEDDLE
    database, journal = scratch / f"{policy.name}.db", scratch / f"{policy.name}.journal.jsonl"
    # A name that the gateway keeps as it is: in its history some characters of an id are escaped.
    names = {one.id: f"agent-{place}" for place, one in enumerate(trajectories)}
    async with AsyncExitStack() as stack:
        children: list[Child] = []

        async def start(name: str, options: Sequence[str], *, listens: bool) -> Child:
            log = scratch / f"{policy.name}-{name}.log"
            child = await Child.start(name, options, listens=listens, log=log)
            stack.push_async_callback(child.stop, STOP_GRACE_S)
            children.append(child)
            return child

        options = ["--database", str(database), *policy.options()]
        if planned:
            planner = await start("planner", ["--port", "0"], listens=True)
            options += ["--planner", (await planner.ready_line(START_TIMEOUT_S))["planner"]]
            options += ["--journal", str(journal)]
        emulated = await start("emulate", [*cluster.options(), *MOVED_PAGE], listens=True)
        urls = (await emulated.ready_line(START_TIMEOUT_S))["workers"]
        port = free_port()
        options += ["--port", str(port)] + [part for url in urls for part in ("--worker", url)]
        gateway = await start("gateway", options, listens=False)
        base_url = f"http://127.0.0.1:{port}"
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=120.0)
        )
        await wait_for_workers(http, gateway, len(urls))
        servers = [(await http.get(f"{url}/server_info")).json() for url in urls]
        core_policy = (await http.get("/admin/v1/policy")).raise_for_status().json()
        if planned:
            names = await _announce(http, trajectories)
        before = _cpu_seconds(children)
        report = await watched(
            run_rollout(
                f"{base_url}/v1",
                trajectories,
                settings,
                on_progress=on_progress,
                name_of=lambda one: names[one.id],
                lean=True,
            ),
            children,
        )
        cpu_s = {name: now - before[name] for name, now in _cpu_seconds(children).items()}
        stats = (await http.get("/admin/v1/stats")).raise_for_status().json()
        metrics = (await http.get("/metrics")).raise_for_status().text
    # The gateway has ended: its history and its journal are whole.
    history = read_history(database)
    held = {one.id: history.held_of(names[one.id]) for one in trajectories}
    return ArmResult(
        policy,
        report,
        lateness_of(report, settings, held),
        history,
        core_policy,
        stats["core"],
        _planner_metrics(metrics),
        servers,
        cpu_s,
        summarise(journal) if planned else None,
    )


def _cpu_seconds(children: Sequence[Child]) -> dict[str, float]:
    """Of each part so far; the agents are this process."""
    return {"agents": time.process_time()} | {child.name: usage(child.pid).cpu_s for child in children}


async def _announce(http: httpx.AsyncClient, trajectories: Sequence[RecordedTrajectory]) -> dict[str, str]:
    """Tells the gateway of the batch, prompts by their tokens; recorded ids to the ids it gave."""
    prompts: dict[str, dict[str, Any]] = {}
    samples: dict[str, int] = {}
    for one in trajectories:
        prompts.setdefault(one.task_id, {"id": one.task_id, "tokens": one.prompt_tokens})
        samples[one.task_id] = samples.get(one.task_id, 0) + 1
    body = {"prompts": list(prompts.values()), "group_size": max(samples.values())}
    created = (await http.post("/admin/v1/rollouts", json=body)).raise_for_status().json()
    given = {(one["group_id"], one["sample"]): one["trajectory_id"] for one in created["trajectories"]}
    return {one.id: given[(one.task_id, one.sample)] for one in trajectories}


def _planner_metrics(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if line.startswith(("heddle_planner_", "heddle_plans_", "heddle_migrations_")):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


async def run_arms(
    policies: Sequence[Policy],
    cluster: Cluster,
    trajectories: Sequence[RecordedTrajectory],
    settings: ReplaySettings,
    scratch: Path,
    on_progress: Callable[[Policy, Progress], None],
) -> list[ArmResult]:
    """One after the other: they would take each other's processors."""
    results = []
    for policy in policies:

        def show(now: Progress, policy: Policy = policy) -> None:
            on_progress(policy, now)

        results.append(await run_arm(policy, cluster, trajectories, settings, show, scratch))
        await asyncio.sleep(0)
    return results
