"""A comparison as JSON and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from heddle_planner.simulate.comparison import Comparison, Outcome

REPORTED: Final = (
    "makespan_s",
    "tokens_per_s",
    "degrees",
    "queue_s_longest",
    "queue_s_last",
    "queue_s_longest_percent",
    "queue_s_mean",
    "interference",
    "interference_longest",
    "prefilled_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "preemptions",
    "retractions",
    "moves",
    "stolen",
    "lost_attempts",
    "rejects",
    "refused_trajectories",
    "holds",
    "active",
    "plans_on_the_way",
    "digest",
    "events",
)
"""Fields of a run's report that go into the JSON as they are."""

PERCENTILES: Final = tuple(range(101))
"""Of the completion times."""


def as_json(comparison: Comparison, workload: Mapping[str, Any]) -> dict[str, Any]:
    """``{"lower_bound_s", "policies": {name: {...}}, "workload": ...}``; times in seconds.

    ``moves`` counts trajectories that got another home, whose context is computed again there; ``migrations``
    those whose KV went with them (``migrations_hidden``: within a tool gap; ``migrated_tokens``: over the
    network).
    """
    best = comparison.best_baseline
    longest, work, joint = comparison.lower_bound_parts_s
    return {
        "workload": dict(workload),
        "lower_bound_s": comparison.lower_bound_s,
        "lower_bound_longest_s": longest,
        "lower_bound_work_s": work,
        "lower_bound_joint_s": joint,
        "best_baseline": None if best is None else best.row.name,
        "policies": {outcome.row.name: _policy(outcome, comparison) for outcome in comparison.outcomes},
    }


def _policy(outcome: Outcome, comparison: Comparison) -> dict[str, Any]:
    report, best = outcome.report, comparison.best_baseline
    ended = sorted(second for second in report["completion_s"] if second is not None)
    return {
        **{name: report[name] for name in REPORTED},
        "over_lower_bound": comparison.over_bound(outcome),
        "migrations": report["migrations"]["landed"],
        "migrations_hidden": report["migrations"]["hidden"],
        "migrations_waited_for": report["migrations"]["waited_for"],
        "migrated_tokens": report["migrations"]["tokens"],
        "workers": outcome.workers,
        "makespan_s_by_workers": dict(outcome.makespan_by_workers),
        "usual_setting": None if outcome.usual is None else dict(outcome.usual),
        "ratio_to_best_baseline": None if best is None else best.makespan / outcome.makespan,
        "baseline": outcome.row.baseline,
        "policy": outcome.row.core_policy,
        "completion_s_percentiles": [_percentile(ended, percent) for percent in PERCENTILES],
    }


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


HEADER: Final = (
    f"{'policy':28} {'workers':>12} {'makespan':>10} {'x bound':>8} {'x best':>7} {'tokens/s':>9} "
    f"{'queue of longest':>16} {'recomputed':>11} {'preempted':>9} {'moves':>7}"
)
"""Head of the table."""


def line(outcome: Outcome, comparison: Comparison) -> str:
    """One row of the table; ``x best`` is how many times faster than the best baseline."""
    report, best = outcome.report, comparison.best_baseline
    ratio = f"{best.makespan / outcome.makespan:7.2f}" if best is not None else "      -"
    return (
        f"{outcome.row.name[:28]:28} {describe(report['degrees']):>12} {report['makespan_s']:8.0f} s "
        f"{comparison.over_bound(outcome):8.2f} {ratio} {report['tokens_per_s']:9.0f} "
        f"{report['queue_s_longest']:14.1f} s {report['recomputed_tokens'] / 1e6:9.1f} M "
        f"{report['preemptions']:9d} {report['moves']:7d}"
    )


def describe(degrees: Sequence[int]) -> str:
    """Workers in short: 4x8+32x1."""
    counts = {degree: list(degrees).count(degree) for degree in sorted(set(degrees), reverse=True)}
    return "+".join(f"{count}x{degree}" for degree, count in counts.items())
