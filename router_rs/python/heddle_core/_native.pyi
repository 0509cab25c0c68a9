"""Types of the native module. Time is always an argument: microseconds of one monotonic clock (``now``)."""

from collections.abc import Sequence
from typing import Any, Final, Literal, TypedDict, final, type_check_only

from typing_extensions import Buffer

DEBUG_BUILD: Final[bool]

Outcome = Literal["done", "aborted", "worker_lost", "client_error", "worker_error", "rejected", "timed_out"]
FailureKind = Literal["unreachable", "overloaded", "worker_error"]

@final
class Dispatch:
    """Send this step to this worker now. ``priority`` is the engine's number, higher first (level x spacing)."""

    step: int
    worker: int
    generation: int
    priority: int
    level: int
    attempt: int
    reason: str

@final
class Reject:
    """End this step without an answer of a worker. ``status`` is an HTTP status, ``reason`` a stable code."""

    step: int
    status: int
    reason: str
    retry_after_ms: int

@final
class Withdraw:
    """Cancel the running attempt of this step: its worker is gone. Then report attempt_failed or step_ended."""

    step: int
    worker: int
    generation: int

@final
class Expire:
    """Forget this trajectory: idle beyond the TTL, or finished with no live step."""

    trajectory: int
    reason: str

Action = Dispatch | Reject | Withdraw | Expire

@final
class Core:
    """The decision core. Each method hands one event in and drains the actions it causes.

    Raises ValueError when an id is unknown where it must be known, or a JSON argument does not fit
    (the message names the field). Never blocks.
    """

    def __new__(cls, policy_json: str | None = None, *, journal: bool = False) -> Core: ...
    # workers
    def worker_up(
        self,
        now: int,
        worker: int,
        generation: int,
        *,
        degree: int,
        slots: int,
        kv_tokens: int,
        has_priority: bool,
        profile_json: str | None = None,
    ) -> list[Action]: ...
    def worker_draining(self, now: int, worker: int, generation: int) -> list[Action]: ...
    def worker_down(self, now: int, worker: int, generation: int) -> list[Action]: ...
    def worker_removed(self, now: int, worker: int, generation: int) -> list[Action]: ...
    def load_report(
        self, now: int, worker: int, generation: int, *, running: int, waiting: int, kv_used: int
    ) -> list[Action]: ...
    # steps
    def step_arrived(
        self,
        now: int,
        step: int,
        trajectory: int,
        *,
        group: int | None,
        prompt_tokens: int,
        body: Any = None,
        pinned_worker: int | None = None,
    ) -> list[Action]:
        """``body``: the Scan of the request; its hash chain serves cache-aware placement only."""
    def first_byte(self, now: int, step: int) -> list[Action]: ...
    def step_aborting(self, now: int, step: int) -> list[Action]:
        """The client left; the abort is on its way. Later steps of this trajectory wait for step_ended."""
    def attempt_failed(
        self, now: int, step: int, worker: int, generation: int, kind: FailureKind
    ) -> list[Action]:
        """The attempt ended and no byte of an answer reached the client: another worker, or a Reject."""
    def step_ended(
        self,
        now: int,
        step: int,
        outcome: Outcome,
        *,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
    ) -> list[Action]: ...
    # knowledge
    def predicted(self, now: int, trajectory: int, mean: float, sigma: float) -> list[Action]: ...
    def install_plan(self, now: int, plan_json: str) -> list[Action]: ...
    def set_policy(self, now: int, policy_json: str) -> list[Action]: ...
    def trajectory_finished(self, now: int, trajectory: int) -> list[Action]: ...
    # time
    def poll_timeout(self) -> int | None: ...
    def handle_timeout(self, now: int) -> list[Action]: ...
    # looking in
    def policy_json(self) -> str: ...
    def trajectory_view(self, trajectory: int) -> dict[str, Any] | None: ...
    def worker_views(self) -> list[dict[str, Any]]: ...
    def stats(self) -> dict[str, int]: ...
    def audit(self) -> list[str]: ...
    def take_journal(self) -> bytes:
        """JSON lines of (now, event) since the last call; empty when journalling is off."""

def replay(journal: bytes, policy_json: str | None = None) -> dict[str, Any]:
    """Runs a journal through a fresh core: {"events", "actions", "digest"}; equal digests mean equal decisions."""

# ---------------------------------------------------------------------------------------------- wire

Dialect = Literal["chat", "completions", "generate"]

@final
class Scan:
    """What one pass over a request body found. The body is not copied and not changed."""

    dialect: str
    model: str | None
    stream: bool
    include_usage: bool | None
    choices: int
    max_tokens: int | None
    prompt_tokens: int
    messages: int
    assistant_turns: int
    fields: dict[str, str]
    def chain(self) -> list[int]: ...
    def message_hashes(self) -> list[int]: ...
    def roles(self) -> list[str]: ...
    def prefix_hash(self, length: int) -> int | None: ...

def scan_body(body: bytes, dialect: Dialect) -> Scan: ...
def splice(
    body: bytes,
    scan: Scan,
    *,
    rid: str | None,
    priority: int | None,
    ask_usage: bool,
    drop: list[str] = ...,
) -> bytes: ...
@final
class StreamTap:
    """Reads an event stream beside the bytes; hides the usage-only chunk when told to."""

    def __new__(cls, dialect: Dialect, *, hide_usage: bool) -> StreamTap: ...
    def feed(self, chunk: bytes) -> bytes: ...
    def finish(self) -> bytes: ...
    def answer(self) -> Answer: ...

@final
class Answer:
    """What an answer said: ``None`` where it said nothing."""

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    finish_reasons: list[str]
    tool_names: list[str]
    answer_hashes: list[int]
    chunks: int
    done: bool
    error: str | None

def read_answer(body: bytes, dialect: Dialect) -> Answer: ...

# -------------------------------------------------------------------------------------------- solver

@type_check_only
class PlannedWorker(TypedDict):
    """One worker of a plan: indices into ``lengths``, longest first; cost in seconds."""

    degree: int
    members: list[int]
    cost: float

@type_check_only
class SolvedPlan(TypedDict):
    """Workers in the order of the ranks they take, longest trajectories first; ``seconds`` is the time to solve."""

    makespan: float
    gpus_used: int
    seconds: float
    workers: list[PlannedWorker]

def solve(
    lengths: Sequence[float] | Buffer,
    *,
    gpus: int,
    degrees: Sequence[int],
    profile_json: str,
    sigmas: Sequence[float] | Buffer | None = None,
    workers: Sequence[int] | None = None,
    solver: Literal["dp", "anneal", "exact"] = "exact",
    cost: Literal["size_only", "simulated"] = "size_only",
    context_tokens: float = 0.0,
    cold_tokens: float = 0.0,
    input_per_output: float = 0.0,
    tool_seconds_per_output: float = 0.0,
    aggregate_below: float = 0.0,
    seed: int = 0,
) -> SolvedPlan:
    """Cuts trajectories of these predicted output tokens into groups, one a worker, of least makespan.

    ``workers`` fixes the MP degrees; else the solver chooses workers of ``degrees`` on ``gpus`` GPUs. ``profile_json`` is a
    WorkerProfile or its short form. ``sigmas``: standard deviation of each prediction, tokens (``simulated`` only).
    ``context_tokens`` a trajectory holds now, ``cold_tokens`` of them to prefill first; with each output token come
    ``input_per_output`` tokens of tool results and ``tool_seconds_per_output`` of tool gap. The GIL is released.
    Buffers are C doubles. Raises ValueError naming the field.
    """
