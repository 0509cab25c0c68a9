"""One control call to every worker that understands it, with a report for each.

Draining workers are asked too: they still run steps, and hold cache and weights.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from heddle_gateway.fleet.engines import ENGINES
from heddle_gateway.fleet.engines.description import LoadSample
from heddle_gateway.fleet.errors import AskFailed, BadAnswer
from heddle_gateway.fleet.events import WorkerEndpoint
from heddle_gateway.fleet.features import Features
from heddle_gateway.fleet.registry import Fleet


class Fate(StrEnum):
    """What became of the call at one worker."""

    DONE = "done"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    """The engine has no such call and was not asked."""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """``status`` is the worker's HTTP status; None where none came. ``text`` is the start of its answer."""

    worker_id: int
    name: str
    url: str
    fate: Fate
    status: int | None = None
    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker's load, asked now. ``sample`` is None where it did not answer; ``error`` says why."""

    endpoint: WorkerEndpoint
    sample: LoadSample | None
    error: str | None = None


async def fan_out(
    fleet: Fleet,
    path: str,
    *,
    needs: Callable[[Features], bool],
    body: Any = None,
    params: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> list[WorkerReply]:
    """POSTs to all serving workers at once. Never raises for a worker: its reply tells. ``timeout_s``: of
    each; None is that of a control.
    """

    async def call(endpoint: WorkerEndpoint) -> WorkerReply:
        if not needs(endpoint.features):
            return _reply(endpoint, Fate.UNSUPPORTED)
        return await post(fleet, endpoint, path, body=body, params=params, timeout_s=timeout_s)

    return list(await asyncio.gather(*(call(endpoint) for endpoint in fleet.endpoints())))


async def post(
    fleet: Fleet,
    endpoint: WorkerEndpoint,
    path: str,
    *,
    body: Any = None,
    params: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> WorkerReply:
    ask = fleet.asking_endpoint(endpoint, timeout_s or fleet.tuning.control_timeout_s)
    try:
        reply = await ask.request("POST", path, body=body, params=params)
    except AskFailed as error:
        return _reply(endpoint, Fate.FAILED, error=str(error))
    fate = Fate.DONE if 200 <= reply.status < 300 else Fate.FAILED
    return _reply(endpoint, fate, status=reply.status, text=reply.excerpt(500))


def overall_status(replies: list[WorkerReply]) -> int:
    """One HTTP status for all: 200 when each worker that has the call did it, else the worst of theirs.

    A worker that did not answer counts as 502; none that has the call is 501; no worker at all is 503.
    """
    if not replies:
        return 503
    asked = [reply for reply in replies if reply.fate is not Fate.UNSUPPORTED]
    if not asked:
        return 501
    failed = [reply for reply in asked if reply.fate is Fate.FAILED]
    # A redirect or anything else below 400 is not what was asked for either.
    codes = (reply.status if reply.status is not None and reply.status >= 400 else 502 for reply in failed)
    return max(codes, default=200)


async def ask_loads(fleet: Fleet) -> list[WorkerLoad]:
    """The load of each serving worker, asked now rather than remembered."""

    async def ask(endpoint: WorkerEndpoint) -> WorkerLoad:
        facts = fleet.facts(endpoint.worker_id)
        try:
            if facts is None or not endpoint.features.loads:
                raise BadAnswer("this engine reports no load")
            asking = fleet.asking_endpoint(endpoint, fleet.tuning.load_timeout_s)
            return WorkerLoad(endpoint, await ENGINES[endpoint.kind].load(asking, facts.kv_tokens))
        except AskFailed as error:
            return WorkerLoad(endpoint, None, str(error))

    return list(await asyncio.gather(*(ask(endpoint) for endpoint in fleet.endpoints())))


def _reply(
    endpoint: WorkerEndpoint,
    fate: Fate,
    *,
    status: int | None = None,
    text: str = "",
    error: str | None = None,
) -> WorkerReply:
    return WorkerReply(endpoint.worker_id, endpoint.name, endpoint.base_url, fate, status, text, error)
