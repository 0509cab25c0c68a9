"""Asks a worker what it is, and merges the answer with what its spec says."""

from dataclasses import replace

from heddle_gateway.fleet.address import WorkerAddress, check_resolved
from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.engines import ENGINES
from heddle_gateway.fleet.engines.description import Description
from heddle_gateway.fleet.errors import BadAnswer
from heddle_gateway.fleet.events import MOST_COUNTED, MOST_KV_TOKENS, WorkerFacts, WorkerSpec


async def identify(ask: Asking, spec: WorkerSpec, address: WorkerAddress) -> Description:
    """The family is found by asking each in turn, or only the one the spec names.

    Raises AskFailed (Unreachable, NoAnswerInTime, StillStarting, BadAnswer) or AddressRefused.
    """
    await check_resolved(address)
    kinds = [spec.kind] if spec.kind is not None else list(ENGINES)
    for kind in kinds:
        found = await ENGINES[kind].describe(ask)
        if found is not None:
            return found
    raise BadAnswer(f"{address.url} does not answer like {' or '.join(kinds)}")


def facts_of(
    found: Description, spec: WorkerSpec, address: WorkerAddress, worker_id: int, generation: int
) -> WorkerFacts:
    """A spec's value wins over the server's own, which may be nonsense."""
    features = found.features
    if spec.priority is not None:
        features = replace(features, priority=spec.priority)
    return WorkerFacts(
        worker_id=worker_id,
        generation=generation,
        name=spec.name or address.host_port,
        url=address.url,
        kind=found.kind,
        features=features,
        models=(spec.model,) if spec.model else found.models,
        degree=spec.degree or min(found.degree, MOST_COUNTED),
        slots=spec.slots or min(found.slots, MOST_COUNTED),
        kv_tokens=min(found.kv_tokens, MOST_KV_TOKENS) if spec.kv_tokens is None else spec.kv_tokens,
        context_length=found.context_length,
        emulated=found.emulated,
        version=found.version,
        weight_version=found.vitals.weight_version,
        page_size=found.page_size,
        preemption_threshold=found.preemption_threshold,
        data_parallel=found.data_parallel,
        pipeline_parallel=found.pipeline_parallel,
        shim_url=spec.shim_url or _own_shim(found.shim_url, address),
        shim_key=spec.api_key,
    )


def _own_shim(told: str | None, address: WorkerAddress) -> str | None:
    """An emulated worker is its own shim. What it says of another host is not followed."""
    return address.url if told is not None and told.rstrip("/") == address.url else None
