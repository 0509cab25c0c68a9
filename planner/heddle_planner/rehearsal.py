"""Rehearses ways to run the live trajectories in the simulator, and says how long each takes.

What is still to come is drawn from the predictions (a lognormal of their mean and spread); how it comes, turn
by turn, from trajectories that are over. The simulated core is told predictions as wrong as the predictor has
been of late. So a plan is judged under the error it will meet, beside the simplest policies under the same.

Invariants: every way meets the same draws; equal inputs give equal results.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from heddle_contracts.planning import ActiveTrajectory, Alternative
from heddle_core import simulate

from heddle_planner.simulate.fleet import most_context
from heddle_planner.simulate.scripts import Script, Turn, to_native

DRAWS: Final = 3
"""Futures that are drawn: each steadies the comparison and costs as much as the first."""
MOST_TURNS: Final = 12_000
"""LLM calls of one draw at most; beyond it consecutive calls are taken together, totals kept, so
that a round takes seconds whatever is live."""
LEAST_ERROR: Final = 0.05
MOST_ERROR: Final = 3.0
LATER_SHARE: Final = 0.5
"""The predictor's error falls to this share of itself as steps come in."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run: a placement of the core, with or without shares (trajectories by worker, as the simulator
    numbers them).
    """

    name: str
    placement: str
    shares: Sequence[tuple[int, int]] | None = None

    @property
    def plan(self) -> dict[str, Any] | None:
        """The core's plan."""
        if self.shares is None:
            return None
        partition = [{"worker": worker, "size": size} for worker, size in self.shares if size > 0]
        return {"version": 1, "partition": partition}


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a rehearsal plays. ``truth``: what workers are, by degree (`fleet.truth_of`); ``workers``: the
    degree of each; ``policy``: the core's policy but for the placement; ``error``: the predictor's own, the
    standard deviation of the logarithm.
    """

    truth: Mapping[str, Any]
    workers: Sequence[int]
    policy: Mapping[str, Any]
    error: float
    seed: int


def rehearse(
    ways: Sequence[Way], active: Sequence[ActiveTrajectory], past: Sequence[Script], stage: Stage
) -> list[Alternative]:
    """Each way's makespan, best first; among equals the order of ``ways``."""
    spans: list[list[float]] = [[] for _ in ways]
    for draw in range(DRAWS):
        seed = stage.seed + draw
        scripts = draw_scripts(active, past, stage, random.Random(seed))
        native = to_native(scripts)
        for place, way in enumerate(ways):
            report, _ = simulate(native, _spec(way, stage, seed))
            spans[place].append(float(json.loads(report)["makespan_s"]))
    found = [
        Alternative(
            name=way.name,
            placement=way.placement,
            with_plan=way.shares is not None,
            expected_makespan_s=sum(span) / len(span),
            worst_makespan_s=max(span),
        )
        for way, span in zip(ways, spans, strict=True)
    ]
    return sorted(found, key=lambda one: one.expected_makespan_s)


def draw_scripts(
    active: Sequence[ActiveTrajectory], past: Sequence[Script], stage: Stage, draw: random.Random
) -> list[Script]:
    """One possible future of every live trajectory, in the manner of ``past`` (not empty). Their contexts are
    the first prompts: the KV that workers hold already is computed anew in every way alike.
    """
    context = most_context(stage.truth)
    groups: dict[tuple[str, str], int] = {}
    shapes = [script.turns for script in past]
    calls = [call for shape in shapes for call in _calls(shape)]
    scripts = []
    for one in active:
        sigma = min(MOST_ERROR, one.sigma if one.sigma is not None else stage.error)
        median = math.log(max(1.0, one.remaining)) - sigma * sigma / 2
        wanted = max(1, round(math.exp(draw.gauss(median, sigma))))
        prompt = max(1, min(one.context_tokens or 1000, context // 2))
        group = None
        if one.group_id is not None:
            group = groups.setdefault((one.tenant, one.group_id), len(groups))
        shape = draw.choice(shapes)
        seam = draw.choice(_calls(shape) or calls or [(0.0, 0)])
        turns = _turns(shape, seam, min(wanted, context - prompt), context - prompt)
        scripts.append(Script(prompt=prompt, turns=turns, group=group))
    return _coarsened(scripts)


def _calls(shape: Sequence[Turn]) -> list[tuple[float, int]]:
    """Of each tool call between two turns, its seconds and the tokens of its result."""
    return [(turn.tool_seconds, after.input) for turn, after in pairwise(shape)]


def _turns(shape: Sequence[Turn], seam: tuple[float, int], wanted: int, room: int) -> tuple[Turn, ...]:
    """``wanted`` output tokens in the manner of ``shape``, repeated as often as it takes, within ``room``
    tokens of context. Behind the last turn of ``shape`` there was no tool call; where it goes on, ``seam``
    (seconds, tokens of the result) is one.
    """
    gap_s, result = seam
    turns: list[Turn] = []
    left = wanted
    while left > 0 and room > 0:
        place = len(turns) % len(shape)
        like = shape[place]
        output = max(1, min(like.output, left, room))
        appended = (like.input if place else result) if turns else 0
        if appended + output > room:
            appended = 0
        tool_seconds = like.tool_seconds if place < len(shape) - 1 else gap_s
        turns.append(Turn(input=appended, output=output, tool_seconds=tool_seconds))
        left -= output
        room -= appended + output
    return tuple(turns) or (Turn(input=0, output=1, tool_seconds=0.0),)


def _coarsened(scripts: Sequence[Script]) -> list[Script]:
    """The scripts with as many consecutive turns taken together as the bound on a draw needs."""
    total = sum(len(script.turns) for script in scripts)
    each = -(-total // MOST_TURNS)
    if each <= 1:
        return list(scripts)
    return [
        Script(
            prompt=script.prompt,
            group=script.group,
            turns=tuple(
                Turn(
                    input=sum(turn.input for turn in script.turns[start : start + each]),
                    output=sum(turn.output for turn in script.turns[start : start + each]),
                    tool_seconds=sum(turn.tool_seconds for turn in script.turns[start : start + each]),
                )
                for start in range(0, len(script.turns), each)
            ),
        )
        for script in scripts
    ]


def _spec(way: Way, stage: Stage, seed: int) -> str:
    error = min(MOST_ERROR, max(LEAST_ERROR, stage.error))
    return json.dumps(
        {
            "truth": stage.truth,
            "workers": list(stage.workers),
            "policy": {**stage.policy, "placement": way.placement},
            "plan": way.plan,
            "prediction": {"kind": "calibrated", "first": error, "least": error * LATER_SHARE},
            "seed": seed,
        }
    )
