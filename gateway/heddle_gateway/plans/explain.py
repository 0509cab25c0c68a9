"""A plan in plain words, for somebody who has not read the paper. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from heddle_contracts.planning import (
    Alternative,
    Plan,
    PlanExplained,
    PlanMaking,
    PlanReason,
    PlanShare,
    ShareExplained,
    TrajectoryExplained,
)

WORDS: Final = {
    "trajectory": "One agent's run, from its first request to its last. It alternates between generating text"
    " on a worker and waiting for a tool.",
    "length": "How many tokens a trajectory still has to generate, as predicted. Nobody knows it for sure;"
    " the prediction is renewed after every request.",
    "rank": "The place of a trajectory when all that are running are sorted by predicted length. Rank 0 is"
    " the longest. Everybody waits for the longest ones, so they get the fastest workers.",
    "MP degree": "How many GPUs a worker uses together for one request. A higher degree makes each token"
    " faster, but a group of GPUs serves fewer requests in total that way.",
    "makespan": "The time until the last trajectory has ended.",
    "lower bound": "A time that no way of dividing the work is expected to beat on these workers.",
    "rehearsal": "The plan and the simplest rules were tried in a simulator, with predictions as wrong as"
    " they have been of late. The quickest one was chosen.",
}
REASONS: Final = {
    PlanReason.PERIOD: "a plan is made every so often",
    PlanReason.ERROR: "predictions had become less accurate",
    PlanReason.WORKERS: "workers came, went or changed",
    PlanReason.ROLLOUT: "a batch of trajectories was announced",
    PlanReason.REQUEST: "somebody asked for it",
}
PLACEMENTS: Final = {
    "by_rank": "by rank, without fixed shares",
    "sticky": "each trajectory stays where it began",
    "least_load": "each request goes where the least is running",
    "cache_aware": "each request goes where most of its prompt is cached",
    "round_robin": "workers take turns",
}
LIMITS: Final = {
    "longest_trajectory": "its longest trajectory: it would end no earlier with less company",
    "amount_of_work": "the amount of work: all its trajectories together keep it busy for that long",
    "nothing": "nothing: it takes no trajectory and helps when others have too many",
}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A live trajectory now: tokens expected, rank among the active ones, name of the worker it is at home
    on.
    """

    remaining: float
    rank: int | None
    home: str | None


def explain(
    plan: Plan, live: Mapping[str, Whereabouts], lengths: Sequence[float], *, most: int
) -> PlanExplained:
    """``live``: by trajectory id; ``lengths``: those that the plan was made for, where they were given;
    ``most``: trajectories that are explained, the longest ones.
    """
    return PlanExplained(
        version=plan.version or 0,
        summary=_summary(plan),
        words=WORDS,
        workers=tuple(_share(share) for share in plan.shares),
        trajectories=tuple(_trajectories(plan, live, lengths, most)),
        alternatives=tuple(_alternative(one, plan) for one in plan.alternatives),
    )


def _summary(plan: Plan) -> str:
    what = f"{plan.trajectories} trajectories on {len(plan.shares)} workers with {plan.gpus} GPUs"
    why = f"It was made because {REASONS[plan.reason]}."
    speeds = f"The workers' speeds come from: {plan.profile}."
    if plan.making is PlanMaking.NO_SHARES:
        rule = PLACEMENTS.get(plan.placement, plan.placement)
        verdict = (
            f"Dividing {what} into shares was rehearsed and did not pay enough: {rule} takes about"
            f" {_time(plan.expected_makespan_s)}. So that rule is used and the shares below are only for"
            " comparison."
        )
    else:
        verdict = (
            f"This plan divides {what}. The longest trajectories go to the workers listed first. The last"
            " one is"
            f" expected to end after {_time(plan.expected_makespan_s)}."
        )
    over = plan.expected_makespan_s / plan.lower_bound_s if plan.lower_bound_s > 0 else 1.0
    bound = f"No plan is expected to beat {_time(plan.lower_bound_s)}; this is {over:.2f} times that."
    return " ".join((verdict, bound, why, speeds))


def _share(share: PlanShare) -> ShareExplained:
    name = share.name or f"a worker of MP degree {share.degree}"
    limit = LIMITS[share.limited_by]
    if not share.size or share.first_rank is None:
        text = f"{name} takes no trajectory of its own; it helps when others have too many."
        return ShareExplained(
            worker=name, degree=share.degree, ranks="none", seconds=0.0, limit=limit, text=text
        )
    last = share.first_rank + share.size - 1
    ranks = f"{share.first_rank}" if share.size == 1 else f"{share.first_rank} to {last}"
    lengths = f"{share.longest:,.0f} tokens"
    if share.size > 1:
        lengths = f"{share.shortest:,.0f} to {share.longest:,.0f} tokens each"
    gpus = "one GPU" if share.degree == 1 else f"{share.degree} GPUs together"
    count = "the trajectory" if share.size == 1 else f"the {share.size} trajectories"
    text = (
        f"{name} ({gpus}) takes {count} of rank {ranks}: {lengths}, {share.tokens:,.0f} in all. It is"
        " expected to be"
        f" done after {_time(share.seconds)}. What decides that is {limit}."
    )
    return ShareExplained(
        worker=name, degree=share.degree, ranks=ranks, seconds=share.seconds, limit=limit, text=text
    )


def _trajectories(
    plan: Plan, live: Mapping[str, Whereabouts], lengths: Sequence[float], most: int
) -> list[TrajectoryExplained]:
    found: list[TrajectoryExplained] = []
    rank = 0
    for share, members in zip(plan.shares, plan.members, strict=False):
        for member in members:
            if len(found) >= most:
                return found
            given = lengths[member] if isinstance(member, int) and member < len(lengths) else None
            found.append(
                _trajectory(plan, share, len(members) - 1, str(member), rank, given, live.get(str(member)))
            )
            rank += 1
    return found


def _trajectory(
    plan: Plan,
    share: PlanShare,
    company: int,
    name: str,
    rank: int,
    given: float | None,
    now: Whereabouts | None,
) -> TrajectoryExplained:
    worker = share.name or f"a worker of MP degree {share.degree}"
    shared = {0: "alone", 1: "with one other"}.get(company, f"with {company} others")
    had = f"When the plan was made it had rank {rank} of {plan.trajectories}"
    text = f"{had}, so it falls to {worker}, {shared}."
    if not plan.live:
        return TrajectoryExplained(
            trajectory_id=name, rank=rank, predicted=given or 0.0, planned_on=worker, text=text
        )
    if now is None:
        text += " It is over by now."
        return TrajectoryExplained(trajectory_id=name, rank=rank, predicted=0.0, planned_on=worker, text=text)
    if now.home is None:
        text += " It has not run yet."
    elif now.home == worker:
        text += " It is there."
    else:
        text += (
            f" It is on {now.home}: its memory of the conversation lies there, and moving it would cost more"
            " than it"
            " gains, or its rank has changed since."
        )
    return TrajectoryExplained(
        trajectory_id=name,
        rank=now.rank,
        predicted=now.remaining,
        planned_on=worker,
        now_on=now.home,
        text=text,
    )


def _alternative(one: Alternative, plan: Plan) -> str:
    what = "the shares of this plan" if one.name == "plan" else PLACEMENTS.get(one.name, one.name)
    if not plan.live:
        return f"{what}: {_time(one.expected_makespan_s)}"
    return (
        f"{what}: {_time(one.expected_makespan_s)} on average in rehearsal,"
        f" {_time(one.worst_makespan_s)} at worst"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    if seconds < 7_200:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"
