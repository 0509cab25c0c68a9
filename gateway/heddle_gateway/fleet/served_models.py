"""Which model the fleet serves, and under which names.

A gateway serves one model: a worker of another one would answer steps with other weights, and engines such as
SGLang answer whatever model a request names. So, where the operator wants it, a worker that lists none of the
names that the others have is kept aside, and a request for a name that no worker has ever had is refused
before it is a step.

Names are what engines list at ``/v1/models``: the model, and its LoRA adapters. They change while a server
lives: adapters come and go, and SGLang names its model after the checkpoint that it was updated from, while
agents go on with the name they began with. So a worker is known by every name it has had.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from heddle_gateway.fleet.features import EngineKind
from heddle_gateway.fleet.state import SERVING, WorkerState

if TYPE_CHECKING:
    from heddle_gateway.fleet.worker import Worker

MAX_EARLIER: Final = 1024
"""Names that a worker has had besides those of its start; a checkpoint every few minutes for days."""
ADAPTER_MARK: Final = ":"
"""SGLang reads ``model:adapter`` (srt/managers/io_struct.py, serving_base.py: _parse_model_parameter)."""
SGLANG_DEFAULT: Final = "default"
"""SGLang's own name for whatever it serves (protocol.py: DEFAULT_MODEL_NAME)."""
CLAIMING: Final = frozenset({WorkerState.ACTIVE, WorkerState.SUSPECT, WorkerState.DOWN})
"""Workers in these states say which model the fleet serves. One that is down will be back: else a stranger
that was kept aside would take its place.
"""


class ModelNames:
    """The names of one worker's model and adapters; empty where it lists none."""

    __slots__ = ("_earlier", "at_start")

    def __init__(self) -> None:
        self.at_start: tuple[str, ...] = ()
        self._earlier: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self.at_start
        yield from self._earlier

    def __contains__(self, name: str) -> bool:
        return name in self.at_start or name in self._earlier

    def __bool__(self) -> bool:
        return bool(self.at_start or self._earlier)

    def started(self, listed: tuple[str, ...]) -> None:
        """Its server has started with these."""
        self.note(self.at_start)
        self.at_start = listed

    def note(self, listed: Iterable[str]) -> None:
        """It goes by these as well."""
        for name in listed:
            # The newest last: the oldest are forgotten.
            self._earlier.pop(name, None)
            self._earlier[name] = None
        while len(self._earlier) > MAX_EARLIER:
            del self._earlier[next(iter(self._earlier))]

    def clear(self) -> None:
        self.at_start = ()
        self._earlier.clear()


class ServedModels:
    """Part of the fleet. ``ask`` learns what a worker lists now; False where it could not be asked.
    ``strict``: False lets every worker and every name pass.
    """

    def __init__(
        self,
        workers: "Mapping[int, Worker]",
        ask: "Callable[[Worker], Awaitable[bool]]",
        *,
        strict: bool,
    ) -> None:
        self._workers = workers
        self._ask = ask
        self._strict = strict
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._heard_all = True

    def listed(self) -> dict[str, tuple[int, ...]]:
        """Model name to the ids of the serving workers that list it, or did when they started."""
        found: dict[str, tuple[int, ...]] = {}
        for worker in self._workers.values():
            if worker.state in SERVING and worker.facts is not None:
                for model in dict.fromkeys((*worker.facts.models, *worker.names.at_start)):
                    found[model] = (*found.get(model, ()), worker.worker_id)
        return found

    def context_length(self, worker_ids: Iterable[int]) -> int | None:
        """The longest prompt with its answer that all of these workers take; None where none says."""
        known = (self._workers[one].facts for one in worker_ids if one in self._workers)
        lengths = [facts.context_length for facts in known if facts is not None]
        return min((length for length in lengths if length is not None), default=None)

    def aside(self) -> dict[str, str]:
        """Names of the workers that are kept aside, and why."""
        aside = [worker for worker in self._workers.values() if worker.state is WorkerState.ASIDE]
        return {worker.name: worker.last_error or "" for worker in aside}

    def serves(self, worker_id: int, model: str | None) -> bool:
        """Whether a worker takes a model under this name. True where either is unknown: then the worker
        decides.
        """
        worker = self._workers.get(worker_id)
        return worker is None or not worker.names or not model or _takes(worker, model)

    def knows(self, model: str | None) -> bool:
        """Whether a request may name this model. True where nobody can say: where no worker that serves, or
        one that lists nothing, has been asked.
        """
        if not model or not self._strict:
            return True
        serving = False
        for worker in self._workers.values():
            if _takes(worker, model):
                return True
            if worker.state in SERVING:
                serving = True
                if not worker.names:
                    return True
        return not serving

    async def look_for(self, model: str) -> bool:
        """As `knows`, after all were asked anew: an adapter may have been loaded a moment ago. True where one
        did not answer, busy with a long prompt, say: a refusal would be final.
        """
        came = time.monotonic()
        async with self._asking:
            # Whoever came during a look waits for one that began after that, with all others who did.
            if self._asked_at < came:
                self._asked_at = time.monotonic()
                serving = [worker for worker in self._workers.values() if worker.state in SERVING]
                self._heard_all = all(await asyncio.gather(*(self._ask(worker) for worker in serving)))
            return self.knows(model) or not self._heard_all

    def stranger(self, newcomer: "Worker", listed: tuple[str, ...]) -> str | None:
        """Why a worker that lists these names is of another model than the others; None where it is not."""
        if not listed:
            return None
        claiming = [
            worker
            for worker in self._workers.values()
            if worker is not newcomer and worker.state in CLAIMING and worker.names
        ]
        if not claiming or any(name in worker.names for worker in claiming for name in listed):
            return None
        known = claiming[0]
        ours = next(iter(known.names))
        return (
            f"it serves {listed[0]!r}, and this gateway {ours!r} (on {known.name}): a gateway serves one"
            " model. Start another gateway for it; or, if it is the same one, remove it and add it with that"
            " name as its model"
        )


def _takes(worker: "Worker", model: str) -> bool:
    names = worker.names
    if model in names:
        return True
    base, mark, _ = model.partition(ADAPTER_MARK)
    if mark and base in names:
        return True
    return (
        bool(names)
        and model == SGLANG_DEFAULT
        and worker.facts is not None
        and (worker.facts.kind is EngineKind.SGLANG)
    )
