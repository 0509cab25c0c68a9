"""Policies compared on one rollout, each with the workers that suit it.

Every baseline runs at every single MP degree, and is reported at the usual one (`fleet.usual_degree`) and
at its best, chosen by this very rollout: hindsight that only baselines get. Heddle chooses its workers
beforehand, by rehearsing each single degree and the solver's mix, with and without the solver's plan, on
other draws of the workload.

A row that plans on the way does so in the run that counts; its workers are chosen as without, since a
rehearsal of rounds that rehearse would take hours.

Invariant: all rows meet the same scripts, the same truth and, where they are told any, the same predictions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import SimWorkload, simulate

from heddle_planner.simulate.choosing import Draw, choose
from heddle_planner.simulate.fleet import GpuLoss, single_degree, usual_degree
from heddle_planner.simulate.planning import Cluster, Forecast, Solver
from heddle_planner.simulate.policies import Cutting, PolicyRow
from heddle_planner.simulate.replanning import Planner
from heddle_planner.simulate.scripts import Script, to_native

MIX: Final = "mix"
"""Name of the solver's workers beside those of single degrees."""
GIVEN: Final = "given"
"""Name of workers that every row runs on."""
WITH_PLAN: Final = " with plan"
"""Suffix where the solver's partition is installed too."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One rollout on so many GPUs. ``truth`` is what workers are (`fleet.truth_of`), ``profile`` what the
    solver plans with; ``conditions`` are further fields of the simulator's spec.
    """

    scripts: Sequence[Script]
    rehearsals: Sequence[Sequence[Script]]
    """Other draws of the same workload, as from earlier epochs, the latest first; at least one."""
    truth: Mapping[str, Any]
    profile: WorkerProfile
    gpus: int
    prediction: Mapping[str, Any]
    seed: int
    conditions: Mapping[str, Any] = field(default_factory=dict)
    losses: Sequence[GpuLoss] = ()
    """GPUs that are lost on the way."""
    plans: bool = True
    """The solver's mix and its plans are rehearsed too; without, single degrees placed by the core alone."""
    workers: Sequence[int] = ()
    """Degrees of the workers that every row runs on; none: each row has those that suit it."""

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
    lower_bound_parts_s: tuple[float, float, float]
    """(longest trajectory alone, all work over all throughput, both at once)."""
    outcomes: Sequence[Outcome]

    @property
    def lower_bound_s(self) -> float:
        """No schedule on as many GPUs is shorter."""
        return max(self.lower_bound_parts_s)

    def over_bound(self, outcome: Outcome) -> float:
        """A row's makespan over the lower bound: how many times faster anything can be."""
        return outcome.makespan / self.lower_bound_s

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

    def spec(self, row: PolicyRow, cluster: Cluster, *, timeline: bool = False) -> str:
        problem = self.problem
        return json.dumps(
            {
                "truth": problem.truth,
                "workers": list(cluster.degrees),
                "policy": row.core_policy,
                "plan": cluster.plan,
                "prediction": problem.prediction if row.predicts else {"kind": "none"},
                "seed": self.seed,
                "timeline": timeline,
                "losses": [loss.of_worker(cluster.degrees) for loss in problem.losses],
                "replan": row.replan.spec if row.replan is not None else None,
                **problem.conditions,
            }
        )

    def run(self, row: PolicyRow, cluster: Cluster, *, timeline: bool = False) -> dict[str, Any]:
        planner = Planner(self.scripts, self.problem.rehearsals[0]) if row.replan is not None else None
        report, _ = simulate(self.native, self.spec(row, cluster, timeline=timeline), planner)
        parsed: dict[str, Any] = json.loads(report)
        return parsed

    def bound(self) -> tuple[float, float, float]:
        row = PolicyRow("bound", {})
        degree = self.problem.degrees[0]
        return self.native.lower_bound(self.spec(row, Cluster(single_degree(self.problem.gpus, degree))))


def compare(
    problem: Problem,
    rows: Sequence[PolicyRow],
    *,
    timeline: bool = False,
    said: Callable[[Outcome], None] = lambda _: None,
) -> Comparison:
    """Runs every row; ``said`` hears of each as it is done."""
    runner = _Runner(problem, problem.scripts, problem.seed)
    bound = runner.bound()
    outcomes: list[Outcome] = []
    for row in rows:
        outcome = _outcome(problem, runner, row, timeline)
        outcomes.append(outcome)
        said(outcome)
    return Comparison(problem, bound, outcomes)


def on_the_same_workers(problem: Problem, of: Outcome, rows: Sequence[PolicyRow]) -> list[Outcome]:
    """Rows on the workers, and with the plan, that another row of ours has chosen: what a policy gives when
    nothing but the policy changes.
    """
    runner = _Runner(problem, problem.scripts, problem.seed)
    cluster = _candidates(runner, of.row)[of.workers]
    outcomes = []
    for row in rows:
        report = runner.run(row, cluster)
        outcomes.append(Outcome(row, of.workers, report, {of.workers: float(report["makespan_s"])}, None))
    return outcomes


def _outcome(problem: Problem, runner: _Runner, row: PolicyRow, timeline: bool) -> Outcome:
    if row.baseline:
        return _in_hindsight(problem, runner, row, timeline)
    clusters = _candidates(runner, row)
    draws = [
        _rehearsal(problem, scripts, problem.seed + 1 + number, row)
        for number, scripts in enumerate(problem.rehearsals)
    ]
    name, rehearsed = choose(clusters, draws)
    return Outcome(row, name, runner.run(row, clusters[name], timeline=timeline), rehearsed, None)


def _rehearsal(problem: Problem, scripts: Sequence[Script], seed: int, row: PolicyRow) -> Draw:
    """Seconds of a cluster, by name, on another draw; None where that draw has no such plan."""
    planned_once = replace(row, replan=None)

    @cache
    def stage() -> tuple[_Runner, dict[str, Cluster]]:
        # Made when it is first asked: most often the first draw leaves one way, and no other is needed.
        runner = _Runner(problem, scripts, seed)
        return runner, _candidates(runner, row)

    def seconds(name: str) -> float | None:
        runner, clusters = stage()
        if name not in clusters:
            return None
        return float(runner.run(planned_once, clusters[name])["makespan_s"])

    return seconds


def _in_hindsight(problem: Problem, runner: _Runner, row: PolicyRow, timeline: bool) -> Outcome:
    clusters = _clusters(problem, problem.degrees)
    reports = {name: runner.run(row, cluster, timeline=timeline) for name, cluster in clusters.items()}
    spans = {name: float(report["makespan_s"]) for name, report in reports.items()}
    best = min(spans, key=lambda name: (spans[name], name))
    if problem.workers:
        return Outcome(row, best, reports[best], spans, None)
    usual = str(usual_degree(dict(problem.truth), max(script.context for script in problem.scripts)))
    if usual not in spans:
        usual = str(problem.degrees[-1])
    at_usual = {"degree": int(usual), "makespan_s": spans[usual]}
    return Outcome(row, best, reports[best], spans, at_usual)


def _clusters(problem: Problem, degrees: Sequence[int]) -> dict[str, Cluster]:
    """Workers without a plan by name: those that are given, or of each single degree."""
    if problem.workers:
        return {GIVEN: Cluster(problem.workers)}
    return {str(degree): Cluster(single_degree(problem.gpus, degree)) for degree in degrees}


def _candidates(runner: _Runner, row: PolicyRow) -> dict[str, Cluster]:
    """Clusters by name that a row of ours chooses among."""
    problem = runner.problem
    degrees = [row.degree] if row.cutting is Cutting.FIXED and row.degree is not None else problem.degrees
    clusters = _clusters(problem, degrees)
    if not problem.plans:
        return clusters
    estimates = runner.native.first_estimates(json.dumps(problem.prediction), runner.seed)
    if estimates is None:
        return clusters
    forecast = Forecast(estimates, problem.rehearsals[0])
    solver = Solver(problem.profile, problem.truth, problem.gpus)
    for name, cluster in list(clusters.items()):
        if planned := solver.fixed(forecast, cluster.degrees):
            clusters[f"{name}{WITH_PLAN}"] = planned
    if problem.workers:
        return clusters
    if row.cutting is Cutting.PLANNED and (mixed := solver.mixed(forecast)):
        clusters[MIX] = Cluster(mixed.degrees)
        clusters[f"{MIX}{WITH_PLAN}"] = mixed
    return clusters
