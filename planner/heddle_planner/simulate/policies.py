"""What is compared: names for settings of the core, and for how the GPUs are cut into workers.

The baselines are those of the paper's evaluation (arXiv 2603.28101, section 7), in the terms of the core:

* verl: a trajectory stays on the worker it began on; workers serve trajectories in turn.
* verl_hybrid (Verl*): the hybrid rule of sglang-router: by cached prefix while loads are close, by load
  otherwise.
* slime: each step to the worker with the least load.
* autellix: sticky, and the trajectory that was served least is next (program-level least attained service).
* fcfs, round_robin, least_load, cache_aware: the single rules, for ablations.
* fix1, fix8: Heddle with all workers at one MP degree.

A name can be followed by changes to the core's policy, ``heddle;admission=unlimited;move_margin=2``, and by
``replan_s``: seconds between plans made on the way (`heddle_planner.simulate.replanning`; with
``replan_latency_s``, that such a plan takes to arrive).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from heddle_core import Core

from heddle_planner.simulate.replanning import Replan


class PolicyError(ValueError):
    """A policy that is not known, or a change to it that cannot be read."""


class Cutting(StrEnum):
    """How GPUs become workers."""

    BEST_SINGLE = "best_single_degree"
    """All workers at one degree, whichever is best; reported for each degree."""
    FIXED = "fixed_degree"
    """All workers at a given degree."""
    PLANNED = "planned"
    """One degree or the solver's mix of them, whichever does best in rehearsal."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One row of a comparison."""

    name: str
    settings: Mapping[str, Any]
    """Changes to the core's default policy."""
    cutting: Cutting = Cutting.BEST_SINGLE
    degree: int | None = None
    """Of ``Cutting.FIXED``."""
    predicts: bool = False
    """The core is told predictions; baselines have none."""
    baseline: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)
    replan: Replan | None = None
    """Plans are made on the way too."""

    @property
    def core_policy(self) -> dict[str, Any]:
        """All changes to the core's default policy."""
        return {**self.settings, **self.changes}


def _baseline(name: str, order: str, placement: str) -> PolicyRow:
    settings = {"order": order, "placement": placement, "admission": "unlimited", "gather_weight": 0}
    return PolicyRow(name, settings)


POLICIES: Final[dict[str, PolicyRow]] = {
    row.name: row
    for row in (
        PolicyRow("heddle", {}, Cutting.PLANNED, predicts=True, baseline=False),
        _baseline("verl", "round_robin", "sticky"),
        _baseline("verl_hybrid", "round_robin", "cache_aware"),
        _baseline("slime", "round_robin", "least_load"),
        _baseline("fcfs", "fcfs", "sticky"),
        _baseline("round_robin", "fcfs", "round_robin"),
        _baseline("autellix", "shortest_first", "sticky"),
        _baseline("least_load", "fcfs", "least_load"),
        _baseline("cache_aware", "fcfs", "cache_aware"),
        PolicyRow("fix1", {}, Cutting.FIXED, degree=1, predicts=True, baseline=False),
        PolicyRow("fix8", {}, Cutting.FIXED, degree=8, predicts=True, baseline=False),
    )
}


def parse_policies(text: str) -> list[PolicyRow]:
    """Rows of a comma-separated list such as ``heddle,verl,heddle;order=fcfs``. Raises PolicyError."""
    rows = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    if not rows:
        raise PolicyError(f"no policy given; known are {', '.join(POLICIES)}")
    seen: set[str] = set()
    for row in rows:
        if row.name in seen:
            raise PolicyError(f"{row.name} is given twice")
        seen.add(row.name)
    return rows


def _parse(text: str) -> PolicyRow:
    name, *changes = (part.strip() for part in text.split(";"))
    if name not in POLICIES:
        raise PolicyError(f"{name!r} is no policy; known are {', '.join(POLICIES)}")
    row = POLICIES[name]
    parsed: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise PolicyError(f"{text!r}: a change must read field=value, not {change!r}")
        parsed[key.strip()] = _value(value.strip())
    if not parsed:
        return row
    try:
        replan = Replan.of(parsed)
    except ValueError as error:
        raise PolicyError(f"{text}: {error}") from error
    changed = replace(row, name=text, changes=parsed, replan=replan)
    try:
        Core(json.dumps(changed.core_policy))
    except ValueError as error:
        raise PolicyError(f"{text}: {error}") from error
    return changed


def _value(text: str) -> Any:
    """A JSON value, or the text itself where it is none (names of variants)."""
    try:
        return json.loads(text)
    except ValueError:
        return text
