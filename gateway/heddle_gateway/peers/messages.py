"""What gateways tell each other, in the words of both sides.

    to the leader      hello · arrive, again, over, synced · sent, first, failed, left, end · note
    from the leader    welcome, fleet, orders · is, held · go, no, void · done · past · stop

``k`` is the follower's own number of a step. Times are durations: clocks are each host's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from heddle_contracts.steps import Outcome

from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.dialects.wire import Answer
from heddle_gateway.fleet.events import WorkerEndpoint, WorkerSpec
from heddle_gateway.fleet.features import EngineKind, Features, PrioritySense
from heddle_gateway.identity import Identity
from heddle_gateway.peers.desk import Who
from heddle_gateway.peers.own_desk import Running

_STEP_FIELDS: Final = tuple(field.name for field in fields(EndedStep))


@dataclass(frozen=True, slots=True)
class ToldIdentity:
    """What the leader says of a step's trajectory; the fields are heddle_core.Identity's."""

    trajectory_id: str
    source: str
    group_id: str | None
    sample: int | None
    parent_id: str | None
    step: int
    segment: int
    final: bool
    retry_of_step: bool


def of_identity(who: Who | Identity) -> list[Any]:
    """In the order of ToldIdentity's fields."""
    return [
        who.trajectory_id,
        who.source,
        who.group_id,
        who.sample,
        who.parent_id,
        who.step,
        who.segment,
        who.final,
        who.retry_of_step,
    ]


def to_identity(values: list[Any]) -> ToldIdentity:
    return ToldIdentity(*values)


def of_ended(step: EndedStep) -> list[Any]:
    return [getattr(step, name) for name in _STEP_FIELDS]


def to_ended(values: list[Any]) -> EndedStep:
    """Raises TypeError or ValueError."""
    step = EndedStep(*values)
    step.outcome, step.tool_names = Outcome(step.outcome), tuple(step.tool_names)
    return step


def of_answer(answer: Answer | None) -> bytes:
    return b"" if answer is None else answer.to_bytes()


def to_answer(blob: bytes) -> Answer | None:
    """Raises ValueError."""
    return Answer.from_bytes(blob) if blob else None


def of_running(running: Running | None) -> list[Any] | None:
    if running is None:
        return None
    return [running.url, running.level, running.since_s, running.streaming]


def to_running(values: list[Any] | None) -> Running | None:
    return None if values is None else Running(*values)


# ---------------------------------------------------------------------------------------------------- the
# fleet


def of_fleet(endpoints: Iterable[WorkerEndpoint], specs: Iterable[WorkerSpec]) -> dict[str, Any]:
    """``endpoints``: those that can be sent to; ``specs``: all that are registered."""
    return {
        "endpoints": [
            [
                one.worker_id,
                one.generation,
                one.name,
                one.base_url,
                one.kind,
                one.api_key,
                [getattr(one.features, field.name) for field in fields(Features)],
            ]
            for one in endpoints
        ],
        "specs": [[getattr(one, field.name) for field in fields(WorkerSpec)] for one in specs],
    }


def to_endpoints(head: dict[str, Any]) -> list[WorkerEndpoint]:
    found = []
    for worker_id, generation, name, url, kind, key, values in head["endpoints"]:
        seen = dict(zip((field.name for field in fields(Features)), values, strict=True))
        features = Features(**(seen | {"priority": PrioritySense(seen["priority"])}))
        found.append(WorkerEndpoint(worker_id, generation, name, url, EngineKind(kind), features, key))
    return found


def to_specs(head: dict[str, Any]) -> list[WorkerSpec]:
    found = []
    for values in head["specs"]:
        said = dict(zip((field.name for field in fields(WorkerSpec)), values, strict=True))
        kind, sense = said["kind"], said["priority"]
        said["kind"] = None if kind is None else EngineKind(kind)
        said["priority"] = None if sense is None else PrioritySense(sense)
        found.append(WorkerSpec(**said))
    return found
