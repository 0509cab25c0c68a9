"""Clusters that a row may run on, and the plans that the solver makes for them.

A plan is made from what is predicted before the first step of each trajectory, and from how earlier
trajectories of the workload were shaped (their prompts, tool results and tool times for each output
token).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_contracts.worker_profile import WorkerProfile
from heddle_core import SolvedPlan, solve

from heddle_planner.simulate.scripts import Script


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers by MP degree, in the order of their handles, and the plan for them: how many consecutive
    ranks each takes, longest first; None to place without one.
    """

    degrees: Sequence[int]
    partition: Sequence[int] | None = None

    @property
    def plan(self) -> dict[str, Any] | None:
        """The core's plan (``heddle_core::plan::PlanSpec``)."""
        if self.partition is None:
            return None
        shares = [{"worker": worker, "size": size} for worker, size in enumerate(self.partition) if size > 0]
        return {"version": 1, "partition": shares}


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known before a rollout: (mean tokens, sigma of the logarithm) of each trajectory, and
    trajectories of the same workload that are over.
    """

    estimates: Sequence[tuple[float, float]]
    past: Sequence[Script]


@dataclass(frozen=True, slots=True)
class Solver:
    """Plans for one cluster's GPUs. ``truth`` gives slots and KV tokens of each degree."""

    profile: WorkerProfile
    truth: Mapping[str, Any]
    gpus: int

    def mixed(self, forecast: Forecast) -> Cluster | None:
        """The best workers of any degrees, and their plan; None where no plan fits."""
        solved = self._solve(forecast, None)
        if solved is None:
            return None
        degrees = [worker["degree"] for worker in solved["workers"]]
        sizes = [len(worker["members"]) for worker in solved["workers"]]
        # What the plan leaves idle is used all the same: a free worker takes from others' queues.
        idle = self.gpus - sum(degrees)
        for degree in sorted(map(int, self.truth), reverse=True):
            while degree <= idle:
                degrees.append(degree)
                sizes.append(0)
                idle -= degree
        return Cluster(degrees, sizes)

    def fixed(self, forecast: Forecast, degrees: Sequence[int]) -> Cluster | None:
        """The plan for these workers; None where none fits."""
        solved = self._solve(forecast, degrees)
        if solved is None:
            return None
        workers = solved["workers"]
        return Cluster(
            [worker["degree"] for worker in workers], [len(worker["members"]) for worker in workers]
        )

    def _solve(self, forecast: Forecast, workers: Sequence[int] | None) -> SolvedPlan | None:
        past = forecast.past
        output = sum(script.output for script in past)
        prompt = sum(script.prompt for script in past) / len(past)
        try:
            return solve(
                [mean for mean, _ in forecast.estimates],
                sigmas=[mean * math.sqrt(math.expm1(sigma**2)) for mean, sigma in forecast.estimates],
                gpus=self.gpus,
                degrees=sorted(degree for degree in map(int, self.truth) if degree <= self.gpus),
                workers=list(workers) if workers is not None else None,
                profile_json=self._profile_json(),
                solver="exact",
                cost="simulated",
                context_tokens=prompt,
                cold_tokens=prompt,
                input_per_output=sum(turn.input for script in past for turn in script.turns[1:]) / output,
                tool_seconds_per_output=sum(script.tool_seconds for script in past) / output,
            )
        except ValueError as error:
            if "no plan" in str(error):
                return None
            raise

    def _profile_json(self) -> str:
        fields = self.profile.model_dump(mode="json")
        fields["degrees"] = {
            degree: {
                **fields["degrees"][degree],
                "slots": truth["slots"],
                "kv_tokens": truth["kv_tokens"],
            }
            for degree, truth in self.truth.items()
        }
        return json.dumps(fields)
