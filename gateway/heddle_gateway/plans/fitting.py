"""Puts a plan's shares onto the live workers: by name where it was made for them, else by MP degree.

Ids are those of the process that made the plan; after a restart a worker has another one and its old name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_contracts.planning import Plan


class DoesNotFit(Exception):
    """The live workers cannot carry the plan; the message says which are missing."""


@dataclass(frozen=True, slots=True)
class FittedShare:
    """A live worker and how many trajectories it takes."""

    worker: int
    name: str
    degree: int
    size: int


def fit(plan: Plan, workers: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> list[FittedShare]:
    """Shares in the order of the ranks. ``workers``: the core's views of those that take steps. Raises
    DoesNotFit.
    """
    live = {int(view["worker"]): int(view["degree"]) for view in workers}
    fitted = []
    left = dict(live)
    for share in plan.shares:
        worker = share.worker
        if worker is None:
            worker = next((one for one, degree in sorted(left.items()) if degree == share.degree), None)
        elif share.name is not None and names.get(worker) != share.name:
            worker = next((one for one in sorted(left) if names.get(one) == share.name), None)
        if worker is not None and left.get(worker) != share.degree:
            worker = None
        if worker is None:
            # Of a live plan a lost worker's ranks go to its neighbours; for given lengths every one must be
            # there.
            if plan.live:
                continue
            raise DoesNotFit(
                f"the plan wants workers of MP degree {_listed(plan.shape)};"
                f" live are {_listed(live.values())}"
            )
        del left[worker]
        fitted.append(FittedShare(worker, names.get(worker, str(worker)), share.degree, share.size))
    if not any(share.size for share in fitted):
        raise DoesNotFit("none of the workers that the plan was made for is live")
    return fitted


def _listed(degrees: Any) -> str:
    return ", ".join(str(degree) for degree in sorted(degrees, reverse=True)) or "none"
