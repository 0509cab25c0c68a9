"""Policies compared on one rollout, each with the workers that suit it.

Every baseline runs at every single MP degree, and is reported at the usual one (`fleet.usual_degree`) and
at its best, chosen by this very rollout: hindsight that only baselines get. Heddle chooses its workers
beforehand, by rehearsing the solver's mix and each single degree on another draw of the workload.

Invariant: all rows meet the same scripts, the same truth and, where they are told any, the same predictions.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import SimWorkload, simulate, solve

from heddle_planner.simulate.fleet import GpuLoss, single_degree, usual_degree
from heddle_planner.simulate.policies import Cutting, PolicyRow
from heddle_planner.simulate.scripts import Script, to_native

PLANNED: Final = "planned"
"""Name of the solver's workers beside those of single degrees."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One rollout on so many GPUs. ``truth`` is what workers are (`fleet.truth_of`), ``profile`` what the
    solver plans with; ``conditions`` are further fields of the simulator's spec.
    """

    scripts: Sequence[Script]
    rehearsal: Sequence[Script]
    """Another draw of the same workload, as from an earlier epoch."""
    truth: Mapping[str, Any]
    profile: WorkerProfile
    gpus: int
    prediction: Mapping[str, Any]
    seed: int
    conditions: Mapping[str, Any] = field(default_factory=dict)
    losses: Sequence[GpuLoss] = ()
    """GPUs that are lost on the way."""

    @property
    def degrees(self) -> list[int]:
        """Degrees that fit the GPUs, ascending."""
        return sorted(degree for degree in map(int, self.truth) if degree <= self.gpus)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row came to: the report of its run, on which workers, and its makespan on the others tried."""

    row: PolicyRow
    workers: str
    report: Mapping[str, Any]
    makespan_by_workers: Mapping[str, float]
    usual: Mapping[str, Any] | None
    """A baseline at the usual degree: {"degree", "makespan_s"}."""

    @property
    def makespan(self) -> float:
        """Seconds."""
        return float(self.report["makespan_s"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, in the order they were asked for."""

    problem: Problem
    lower_bound_s: float
    lower_bound_parts_s: tuple[float, float]
    """(longest trajectory alone, all work over all throughput)."""
    outcomes: Sequence[Outcome]

    @property
    def best_baseline(self) -> Outcome | None:
        """The shortest of the baselines at their best degrees."""
        baselines = [outcome for outcome in self.outcomes if outcome.row.baseline]
        return min(baselines, key=lambda outcome: outcome.makespan, default=None)


class _Runner:
    """Runs specs on one draw of the workload."""

    def __init__(self, problem: Problem, scripts: Sequence[Script], seed: int) -> None:
        self.problem = problem
        self.scripts = scripts
        self.native: SimWorkload = to_native(scripts)
        self.seed = seed

    def spec(self, row: PolicyRow, workers: Sequence[int], *, timeline: bool = False) -> str:
        problem = self.problem
        return json.dumps(
            {
                "truth": problem.truth,
                "workers": list(workers),
                "policy": row.core_policy,
                "prediction": problem.prediction if row.predicts else {"kind": "none"},
                "seed": self.seed,
                "timeline": timeline,
                "losses": [loss.of_worker(workers) for loss in problem.losses],
                **problem.conditions,
            }
        )

    def run(self, row: PolicyRow, workers: Sequence[int], *, timeline: bool = False) -> dict[str, Any]:
        report, _ = simulate(self.native, self.spec(row, workers, timeline=timeline))
        parsed: dict[str, Any] = json.loads(report)
        return parsed

    def bound(self) -> tuple[float, float]:
        row = PolicyRow("bound", {})
        degree = self.problem.degrees[0]
        return self.native.lower_bound(self.spec(row, [degree] * (self.problem.gpus // degree)))


def compare(
    problem: Problem,
    rows: Sequence[PolicyRow],
    *,
    timeline: bool = False,
    said: Callable[[Outcome], None] = lambda _: None,
) -> Comparison:
    """Runs every row; ``said`` hears of each as it is done."""
    runner = _Runner(problem, problem.scripts, problem.seed)
    longest, work = runner.bound()
    outcomes: list[Outcome] = []
    for row in rows:
        outcome = _outcome(problem, runner, row, timeline)
        outcomes.append(outcome)
        said(outcome)
    return Comparison(problem, max(longest, work), (longest, work), outcomes)


def _outcome(problem: Problem, runner: _Runner, row: PolicyRow, timeline: bool) -> Outcome:
    if row.cutting is Cutting.FIXED and row.degree is not None:
        workers = single_degree(problem.gpus, row.degree)
        report = runner.run(row, workers, timeline=timeline)
        return Outcome(row, str(row.degree), report, {str(row.degree): report["makespan_s"]}, None)
    singles = {str(degree): single_degree(problem.gpus, degree) for degree in problem.degrees}
    if row.cutting is Cutting.PLANNED:
        rehearsed = _rehearse(problem, row, {**singles, PLANNED: plan_workers(problem, runner)})
        name = min(rehearsed, key=lambda name: (rehearsed[name], name))
        workers = plan_workers(problem, runner) if name == PLANNED else singles[name]
        return Outcome(row, name, runner.run(row, workers, timeline=timeline), rehearsed, None)
    reports = {name: runner.run(row, workers, timeline=timeline) for name, workers in singles.items()}
    spans = {name: float(report["makespan_s"]) for name, report in reports.items()}
    best = min(spans, key=lambda name: (spans[name], name))
    usual = str(usual_degree(dict(problem.truth), max(script.context for script in problem.scripts)))
    if usual not in spans:
        usual = str(problem.degrees[-1])
    at_usual = {"degree": int(usual), "makespan_s": spans[usual]}
    return Outcome(row, best, reports[best], spans, at_usual)


def _rehearse(problem: Problem, row: PolicyRow, candidates: Mapping[str, Sequence[int]]) -> dict[str, float]:
    runner = _Runner(problem, problem.rehearsal, problem.seed + 1)
    tried = {**candidates, PLANNED: plan_workers(problem, runner)}
    return {name: float(runner.run(row, workers)["makespan_s"]) for name, workers in tried.items()}


def plan_workers(problem: Problem, runner: _Runner) -> list[int]:
    """The solver's mix of degrees for what is predicted at the start, highest degree first."""
    estimates = runner.native.first_estimates(json.dumps(problem.prediction), runner.seed)
    if estimates is None:
        return single_degree(problem.gpus, problem.degrees[0])
    scripts = problem.rehearsal
    output = sum(script.output for script in scripts)
    plan = solve(
        [mean for mean, _ in estimates],
        sigmas=[mean * math.sqrt(math.expm1(sigma**2)) for mean, sigma in estimates],
        gpus=problem.gpus,
        degrees=problem.degrees,
        profile_json=_solver_profile(problem),
        solver="exact",
        cost="simulated",
        context_tokens=sum(script.prompt for script in scripts) / len(scripts),
        cold_tokens=sum(script.prompt for script in scripts) / len(scripts),
        input_per_output=sum(turn.input for script in scripts for turn in script.turns[1:]) / output,
        tool_seconds_per_output=sum(script.tool_seconds for script in scripts) / output,
    )
    workers = sorted((worker["degree"] for worker in plan["workers"]), reverse=True)
    # What the plan leaves idle is used all the same: a free worker takes from others' queues.
    idle = problem.gpus - sum(workers)
    for degree in sorted(problem.degrees, reverse=True):
        while degree <= idle:
            workers.append(degree)
            idle -= degree
    return sorted(workers, reverse=True)


def _solver_profile(problem: Problem) -> str:
    """The profile with the slots and KV tokens of this rollout."""
    fields = problem.profile.model_dump(mode="json")
    fields["degrees"] = {
        degree: {
            **fields["degrees"][degree],
            "slots": truth["slots"],
            "kv_tokens": truth["kv_tokens"],
        }
        for degree, truth in problem.truth.items()
    }
    return json.dumps(fields)
