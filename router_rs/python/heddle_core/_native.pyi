"""Types of the native module. Time is always an argument: microseconds of one monotonic clock (``now``)."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Final, Self, final

from typing_extensions import Buffer

from heddle_core.names import Dialect, FailureKind, HistoryUnit, MigrationFailure, Outcome
from heddle_core.plans import CostName, SolvedPlan, SolverName

__all__ = [
    "DEBUG_BUILD",
    "FEATURES",
    "WORD_BUCKETS",
    "Answer",
    "AppendFile",
    "Bag",
    "CancelMigration",
    "Core",
    "Dispatch",
    "Expire",
    "Forest",
    "Identity",
    "IdentityBook",
    "Migrate",
    "Progress",
    "RecentText",
    "Reject",
    "Scan",
    "Siblings",
    "SimWorkload",
    "StreamTap",
    "Withdraw",
    "answer_lines",
    "forward_lines",
    "json_row",
    "plain_answer",
    "plain_request",
    "read_answer",
    "replay",
    "scan_body",
    "simulate",
    "solve",
    "splice",
    "weigh",
]

DEBUG_BUILD: Final[bool]

@final
class Dispatch:
    """Send this step to this worker now. ``priority`` is the engine's number, higher first (level x
    spacing).
    """

    step: int
    worker: int
    generation: int
    priority: int
    level: int
    attempt: int
    reason: str
    def __new__(
        cls,
        *,
        step: int,
        worker: int,
        generation: int,
        priority: int,
        level: int,
        attempt: int,
        reason: str,
    ) -> Self: ...

@final
class Reject:
    """End this step without an answer of a worker. ``status`` is an HTTP status, ``reason`` a stable code."""

    step: int
    status: int
    reason: str
    retry_after_ms: int
    def __new__(
        cls,
        *,
        step: int,
        status: int,
        reason: str,
        retry_after_ms: int,
    ) -> Self: ...

@final
class Withdraw:
    """Cancel the running attempt of this step: its worker is gone. Then report attempt_failed or
    step_ended.
    """

    step: int
    worker: int
    generation: int
    def __new__(
        cls,
        *,
        step: int,
        worker: int,
        generation: int,
    ) -> Self: ...

@final
class Migrate:
    """Move this trajectory's KV, in its tool gap; then report migration_landed or migration_failed.

    ``tokens`` of context lie at the source, as far as is known. Give it up after ``within_us``.
    ``worth_us`` is what computing the context again would take: do not begin a transfer that takes longer;
    None where somebody insists.
    """

    migration: int
    trajectory: int
    from_worker: int
    from_generation: int
    to_worker: int
    to_generation: int
    tokens: int
    within_us: int
    worth_us: int | None
    def __new__(
        cls,
        *,
        migration: int,
        trajectory: int,
        from_worker: int,
        from_generation: int,
        to_worker: int,
        to_generation: int,
        tokens: int,
        within_us: int,
        worth_us: int | None,
    ) -> Self: ...

@final
class CancelMigration:
    """Stop this transfer; report how it ended all the same."""

    migration: int
    trajectory: int
    from_worker: int
    to_worker: int
    def __new__(
        cls,
        *,
        migration: int,
        trajectory: int,
        from_worker: int,
        to_worker: int,
    ) -> Self: ...

@final
class Expire:
    """Forget this trajectory: idle beyond the TTL, or finished with no live step."""

    trajectory: int
    reason: str
    def __new__(cls, *, trajectory: int, reason: str) -> Self: ...

_Action = Dispatch | Reject | Withdraw | Migrate | CancelMigration | Expire

@final
class Core:
    """The decision core. Each method hands one event in and drains the actions it causes.

    Every step that arrived is ended by exactly one ``step_ended``, also after a Reject. Raises ValueError
    when an id is unknown where it must be known, or an argument does not fit (the message names the
    field); the state is as before then. Events of an old generation are counted and ignored. Never blocks.

    ``policy_json``: an object with any of the policy's fields, see ``policy_json()``; the rest is the
    default. ``journal``: write down every event, see ``take_journal``.
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
        transfer_tokens_per_s: float | None = None,
        transfer_setup_us: int = 0,
        weights: int = 0,
    ) -> list[_Action]:
        """A worker can be used, or says anew what it can do; a new generation voids the old one's residency.

        ``kv_tokens``: 0 for unknown. ``profile_json``: an object with any of ``token_us``,
        ``token_us_per_seq``, ``token_us_per_context_token``, ``prefill_tokens_per_s`` and ``pinned`` (do
        not learn from observed speed); what is absent follows from the degree. ``transfer_tokens_per_s``: KV
        tokens a second that it can send or receive, None where it cannot; ``transfer_setup_us`` is what a
        transfer takes whatever it moves. ``weights``: a number for the weights it runs.
        """
    def worker_draining(self, now: int, worker: int, generation: int) -> list[_Action]:
        """No new steps there while another worker can take them."""
    def worker_down(self, now: int, worker: int, generation: int) -> list[_Action]:
        """The worker is lost: its attempts are withdrawn, its queue goes to others."""
    def worker_removed(self, now: int, worker: int, generation: int) -> list[_Action]: ...
    def load_report(
        self, now: int, worker: int, generation: int, *, running: int, waiting: int, kv_used: int
    ) -> list[_Action]: ...
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
        bound: bool = False,
    ) -> list[_Action]:
        """``body``: the Scan of the request; its hash chain serves cache-aware placement only. ``bound``: no
        worker but the pinned one can serve it.
        """
    def step_adopted(
        self,
        now: int,
        step: int,
        trajectory: int,
        *,
        group: int | None,
        prompt_tokens: int,
        worker: int,
        generation: int,
        level: int,
        running_us: int,
        streaming: bool,
    ) -> list[_Action]:
        """A step that another process sent to its worker goes on here: counted, not sent. Of a worker that is
        not known, or of another life of it, nothing is counted until attempt_failed or step_ended.
        """
    def first_byte(self, now: int, step: int) -> list[_Action]: ...
    def step_aborting(self, now: int, step: int) -> list[_Action]:
        """The client left; the abort is on its way. Later steps of this trajectory wait for step_ended."""
    def attempt_failed(
        self, now: int, step: int, worker: int, generation: int, kind: FailureKind
    ) -> list[_Action]:
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
    ) -> list[_Action]: ...
    # knowledge
    def predicted(
        self, now: int, trajectory: int, mean: float, sigma: float, *, gap_us: int | None = None
    ) -> list[_Action]:
        """``mean``: output tokens still to come; ``sigma``: standard deviation of their logarithm, 0 to 5;
        ``gap_us``: expected microseconds of the tool gap, from the end of the last step.
        """
    def trajectory_expected(
        self, now: int, trajectory: int, *, group: int | None, mean: float, sigma: float
    ) -> list[_Action]:
        """Announces a trajectory before its first step: it is ranked among the active ones from now on. Said
        of a known one it is a prediction.
        """
    def install_plan(self, now: int, plan_json: str) -> list[_Action]:
        """``{"version": n, "partition": [{"worker": id, "size": n}, ...], "ttl_ms": n}``, shares by rank, the
        longest first; ``ttl_ms`` may be absent; the version must be newer than the last.
        """
    def set_policy(self, now: int, policy_json: str) -> list[_Action]:
        """Changes the fields that the object names and sorts what is held anew."""
    def trajectory_finished(self, now: int, trajectory: int) -> list[_Action]:
        """Its owner says that it is over: Expire at once, or when its last live step has ended."""
    # moving KV
    def migration_asked(
        self, now: int, trajectory: int, to_worker: int, *, within_us: int | None = None
    ) -> list[_Action]:
        """A person wants it: begins at once in a tool gap, else with the next one. See ``move_views``.
        ``within_us``: what the transfer may take; None is sized by what it moves."""
    def dispatch_paused(self, now: int, paused: bool) -> list[_Action]:
        """The engines are paused, or go on: no step is sent and no move begins in between."""
    def migration_landed(self, now: int, migration: int, tokens: int) -> list[_Action]:
        """The target holds ``tokens`` of context: it is the trajectory's home now."""
    def migration_failed(self, now: int, migration: int, why: MigrationFailure) -> list[_Action]:
        """The source holds the KV as before."""
    def weights_updated(self, now: int, worker: int, generation: int, weights: int) -> list[_Action]:
        """What KV the worker holds is void."""
    # time
    def poll_timeout(self) -> int | None:
        """When to call ``handle_timeout``; ask again after every event."""
    def handle_timeout(self, now: int) -> list[_Action]: ...
    # looking in
    def policy_json(self) -> str:
        """Every field of the policy in force, as one object."""
    def trajectory_view(self, trajectory: int) -> dict[str, Any] | None:
        """``trajectory, phase, group, rank`` (None while dormant)``, remaining, generated, steps,
        context_tokens, home, resident_tokens, gap_since, live_steps``: ``step, state, arrived_at, worker,
        level, attempts, preempted`` each.
        """
    def active_views(self) -> list[tuple[int, int, float | None, int, int, int | None]]:
        """Of every active trajectory: (handle, remaining tokens, sigma of its prediction, context tokens,
        tokens generated, home worker).
        """
    def worker_views(self) -> list[dict[str, Any]]:
        """By id: ``worker, generation, state, degree, slots, running, preempted, queued, homed,
        homed_remaining, kv_tokens, kv_committed, kv_used, suspect_until, speed_scale``, and the believed
        costs, scale included: ``token_us, token_us_per_seq, token_us_per_context_token,
        prefill_tokens_per_s``; ``can_migrate``.
        """
    def move_views(self) -> list[dict[str, Any]]:
        """Moves of KV that have not ended, oldest first: ``migration, trajectory, from_worker, to_worker,
        tokens, asked_by, state, asked_at, began_at`` (0 before)``, expected_us, waited_for``.
        """
    def stats(self) -> dict[str, int]:
        """Numbers by name: what is the case now, and totals since the start (``*_total``)."""
    def audit(self) -> list[str]:
        """What does not hold of the state; empty when all is well. Looks at everything: for idle time."""
    def take_journal(self) -> bytes:
        """JSON lines of (now, event) since the last call; empty when journalling is off."""

def replay(journal: bytes, policy_json: str | None = None) -> dict[str, Any]:
    """Runs a journal through a fresh core: {"events", "actions", "digest", "stats"}; equal digests mean equal
    decisions, and ``stats`` are the live core's at the end of the journal.
    """

# ------------------------------------------------------------------------------------------ identity

@final
class Identity:
    """Which step of which trajectory a request is; made by ``IdentityBook.resolve``."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def source(self) -> str:
        """The rule that fired: a convention's name, or ``history-...`` from the fingerprint."""
    @property
    def group_id(self) -> str | None: ...
    @property
    def sample(self) -> int | None: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def final(self) -> bool:
        """The request says that it is the trajectory's last."""
    @property
    def step(self) -> int:
        """From 0."""
    @property
    def segment(self) -> int:
        """Grows by one each time the history was rewritten."""
    @property
    def retry_of_step(self) -> bool:
        """The client repeats a step that is known, under its number."""
    @property
    def is_new(self) -> bool:
        """The first step of a trajectory."""
    @property
    def request_hash(self) -> int:
        """Of the whole history."""

@final
class IdentityBook:
    """All that identity remembers; the rules are in router_rs/crates/identity.

    ``resolve`` decides and changes nothing, ``step_started`` makes it so, ``step_ended`` is called once for
    each start. Memory is bounded by ``capacity`` conversations and ``idle_ttl_s``; one with a step in flight
    is never dropped. ``new_id`` names new trajectories that nobody named. Times are monotonic seconds.
    """

    def __new__(cls, *, capacity: int, idle_ttl_s: float, new_id: Callable[[], str]) -> Self: ...
    def __len__(self) -> int: ...
    def resolve(
        self,
        scan: Scan,
        tenant: str,
        retry_count: str | None,
        received_at: float,
        source: str | None = None,
        trajectory_id: str | None = None,
        group_id: str | None = None,
        sample: int | None = None,
        parent_id: str | None = None,
        final: bool = False,
    ) -> Identity:
        """``retry_count``: the value of ``x-stainless-retry-count``. ``source`` names the convention by which
        the request named its ``trajectory_id``.
        """
    def resume(
        self,
        scan: Scan,
        tenant: str,
        retry_count: str | None,
        received_at: float,
        source: str,
        trajectory_id: str,
        group_id: str | None,
        sample: int | None,
        parent_id: str | None,
        final: bool,
        step: int,
        segment: int,
    ) -> Identity:
        """A step that runs already, begun under this number by another process; it has started here."""
    def step_started(self, identity: Identity) -> None:
        """Call it before another request is resolved. Raises ValueError on a second call."""
    def client_left(self, identity: Identity, answer: Answer | None, now: float) -> None:
        """The client hung up, and the engine is still being told; ``step_ended`` follows."""
    def step_ended(self, identity: Identity, outcome: str, answer: Answer | None, now: float) -> None:
        """``outcome``: "done" where the answer is whole. Raises ValueError if the step never started or has
        ended before.
        """
    def forget(self, tenant: str, trajectory_id: str) -> None:
        """Unknown ids are fine."""
    def restore(
        self,
        tenant: str,
        trajectory_id: str,
        *,
        model: str,
        group_id: str | None,
        sample: int | None,
        parent_id: str | None,
        steps: int,
        segments: int,
        last_seen: float,
        memory: str | None = None,
    ) -> None:
        """Takes up a trajectory of an earlier process, the one seen longest ago first."""
    def memory(self, tenant: str, trajectory_id: str) -> str | None:
        """What is remembered of its history: text that `restore` takes in a process of the same release."""
    def keys_held(self) -> int:
        """Keys of the index: what bounds its memory."""

# ---------------------------------------------------------------------------------------------- wire

@final
class Scan:
    """What one pass over a request body found. Hashes are 64-bit and say nothing across releases."""

    TEXT_BLOCK: Final[int]
    TOKEN_BLOCK: Final[int]
    @property
    def dialect(self) -> Dialect: ...
    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def include_usage(self) -> bool | None:
        """``stream_options.include_usage``; None where it is absent or no boolean."""
    @property
    def previous_response_id(self) -> str | None:
        """Responses: the stored answer that the request goes on from."""
    @property
    def background(self) -> bool:
        """Responses: ``background`` is true, the caller does not wait."""
    @property
    def choices(self) -> int:
        """Answers asked for: ``n``, at least 1."""
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def prompt_tokens(self) -> int:
        """Exact for token ids; for text an estimate of four bytes a token, tools included."""
    @property
    def messages(self) -> int:
        """Messages of a conversation; 0 in the text dialects."""
    @property
    def assistant_turns(self) -> int: ...
    @property
    def unit(self) -> HistoryUnit:
        """What lengths of the history count: chat messages, bytes of text, token ids; opaque: a batch, or
        nothing.
        """
    @property
    def history_length(self) -> int: ...
    @property
    def head(self) -> int:
        """Hash of a leading system or developer message; in the text dialects of the first block. 0 without
        one.
        """
    @property
    def fields(self) -> dict[str, str]:
        """Strings that may name a trajectory, by dotted path (``metadata.session_id``); known paths only."""
    def chain(self) -> list[int]:
        """Hashes of prefixes. Chat: ``chain[i]`` covers messages 0..=i. Other dialects: ``chain[i]`` covers
        the first i + 1 whole blocks of TEXT_BLOCK bytes or TOKEN_BLOCK tokens.
        """
    def message_hashes(self) -> list[int]: ...
    def roles(self) -> list[str]: ...
    def assistant_positions(self) -> list[int]:
        """Indices of the assistant's messages, ascending."""
    def last_answer(self) -> tuple[int, int] | None:
        """Of the last assistant's message with something before it: (hash of all before it, its own hash)."""
    def call_ids(self) -> list[int]:
        """Hashes of the tool-call ids named in the history."""
    def anchors(self) -> list[int]:
        """Hashes of how the lines of the messages start; reads the body again."""
    def prefix_hash(self, length: int) -> int | None:
        """Hash of the first ``length`` units of the history; None beyond its end and for opaque ones."""
    def span_hash(self, start: int, length: int) -> int | None:
        """Hash of ``length`` bytes or tokens of a prompt from ``start``; None in chat and out of range."""
    def to_bytes(self) -> bytes:
        """For another process of this release: hashes, counts and, in the text dialects, the prompt. Without
        ``fields``.
        """
    @staticmethod
    def from_bytes(data: bytes) -> Scan:
        """What ``to_bytes`` wrote; ``splice`` refuses it. Raises ValueError."""

def scan_body(body: bytes, dialect: Dialect) -> Scan:
    """Raises ValueError, with the position: no JSON, no object, no UTF-8, nested deeper than 512. Types are
    not checked.
    """

def splice(
    body: bytes,
    scan: Scan,
    *,
    rid: str | None,
    priority: int | None,
    ask_usage: bool,
    drop: list[str] = ...,
) -> bytes:
    """The body with ``rid`` and ``priority`` set, usage asked for if it streams, top-level members in
    ``drop`` gone.

    Every other byte stays. Raises ValueError if ``scan`` is of another body, or ``rid`` is not of letters,
    digits, -_.:
    """

@final
class StreamTap:
    """Reads an event stream beside the bytes; hides the usage-only chunk when told to."""

    def __new__(cls, dialect: Dialect, *, hide_usage: bool) -> StreamTap: ...
    def feed(self, chunk: bytes) -> bytes:
        """What goes to the client now: the chunk itself unless something is held back, released or hidden."""
    @property
    def done(self) -> bool:
        """The stream has said that it is over."""
    @property
    def silent(self) -> bool:
        """Nothing but a beginning has come: no output, no end, no error."""
    def finish(self) -> bytes:
        """To be called at the end of the stream: bytes still held back."""
    def answer(self) -> Answer: ...

@final
class Answer:
    """What an answer said: ``None`` where it said nothing."""

    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def finish_reasons(self) -> list[str]:
        """Of each choice that has one, by index; in every dialect by the words of chat."""
    @property
    def tool_names(self) -> list[str]:
        """Of each call, by choice and index; repeats stay."""
    @property
    def answer_hashes(self) -> list[int]:
        """One a choice. With messages: equal to the message's hash in the next request. Other dialects: of
        the exact text.
        """
    @property
    def text_spans(self) -> list[tuple[int, int]]:
        """Text dialects: (bytes, hash) of each choice's text, to be compared with Scan.span_hash."""
    @property
    def token_spans(self) -> list[tuple[int, int]]:
        """The same in tokens, where the worker gave token ids."""
    @property
    def call_ids(self) -> list[int]: ...
    @property
    def anchors(self) -> list[int]:
        """Hashes of how the text starts, to be looked for in Scan.anchors()."""
    @property
    def chunks(self) -> int:
        """Pieces that carried output: about one a token in a stream."""
    @property
    def done(self) -> bool:
        """The stream said that it is over; a whole body was read and is no error."""
    @property
    def error(self) -> str | None: ...
    @property
    def response_id(self) -> str | None:
        """Responses: the answer's id."""
    @property
    def sequence(self) -> int | None:
        """Responses: number of the last event."""
    def to_bytes(self) -> bytes:
        """For another process of this release."""
    @staticmethod
    def from_bytes(data: bytes) -> Answer:
        """What ``to_bytes`` wrote. Raises ValueError."""

def read_answer(body: bytes, dialect: Dialect) -> Answer:
    """Raises ValueError if the body is no JSON."""

def plain_request(data: bytes) -> tuple[bytes, dict[str, str], bytes, bytes] | None:
    """Target, headers, header lines for the worker (``forward_lines``) and body of a POST that is whole,
    plainly framed and alone in ``data``; None for anything else. Header names are lower case, values Latin-1,
    the last of a repeated one.
    """

def plain_answer(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Status, header lines for the client (``answer_lines``) and body of a successful answer that is whole,
    plainly framed and alone in ``data``, and leaves its connection open; None for anything else.
    """

def forward_lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The header lines that go to a worker, each ended by CRLF; of a request with these (lower-case) ones.

    Without ``x-request-id`` and ``content-length``. Never credentials, hop-by-hop ones, or what could command
    the engine.
    """

def answer_lines(headers: list[tuple[bytes, bytes]], without: list[bytes] = ...) -> bytes:
    """The header lines that go to a client; of an answer with these (lower-case) ones."""

# ------------------------------------------------------------------------------------------ solver

def solve(
    lengths: Sequence[float] | Buffer,
    *,
    gpus: int,
    degrees: Sequence[int],
    profile_json: str,
    sigmas: Sequence[float] | Buffer | None = None,
    workers: Sequence[int] | None = None,
    solver: SolverName = "exact",
    cost: CostName = "size_only",
    context_tokens: float = 0.0,
    cold_tokens: float = 0.0,
    input_per_output: float = 0.0,
    tool_seconds_per_output: float = 0.0,
    aggregate_below: float = 0.0,
    seed: int = 0,
) -> SolvedPlan:
    """Cuts trajectories of these predicted output tokens into groups, one a worker, of least makespan.

    ``workers`` fixes the MP degrees; else the solver chooses workers of ``degrees`` on ``gpus`` GPUs.
    ``profile_json`` is a WorkerProfile or its short form. ``sigmas``: standard deviation of each prediction,
    tokens (``simulated`` only). A trajectory holds ``context_tokens`` now, ``cold_tokens`` of them are to be
    prefilled first; with each output token come ``input_per_output`` tokens of tool results and
    ``tool_seconds_per_output`` of tool gap. The GIL is released. Buffers are C doubles. Raises ValueError
    naming the field.
    """

# ------------------------------------------------------------------------------------------ simulator

@final
class SimWorkload:
    """Trajectories to simulate; their index is their id. Raises ValueError naming trajectory and field."""

    def __new__(
        cls,
        scripts: Sequence[tuple[int, int | None, float, Sequence[tuple[int, int, float]]]],
        forecasts: Sequence[Sequence[tuple[float, float]]] | None = None,
    ) -> SimWorkload:
        """A script: (prompt tokens, group, seconds of its start, steps). A step: (tokens appended before it,
        tokens it generates, seconds of its tool call). ``forecasts``: (mean tokens, sigma of the logarithm)
        that a real predictor said before each step, for ``{"kind": "recorded"}``.
        """
    def first_estimates(self, prediction_json: str, seed: int) -> list[tuple[float, float]] | None:
        """What a predictor says before each first step: (mean tokens, sigma of the logarithm).

        None for ``{"kind": "none"}``. The kinds are those of a spec's ``prediction``.
        """
    def lower_bound(self, spec_json: str) -> tuple[float, float, float]:
        """Seconds that no schedule on the spec's GPUs beats, whatever its workers' degrees: (the longest
        trajectory alone, all work over all throughput, both at once). The last is the highest.
        """

def simulate(
    workload: SimWorkload, spec_json: str, planner: Callable[[str], str | None] | None = None
) -> tuple[str, bytes]:
    """Runs a workload on a modelled cluster: (report as JSON, the core's journal if the spec asks for one).

    ``planner`` is asked as the spec's ``replan`` says: a ``heddle_sim::cluster::replanning::Question`` as
    JSON in, its ``Answer`` out or None; what it raises ends the run and is raised here.

    The fields of spec and report are those of ``heddle_sim::spec::Spec`` and
    ``heddle_sim::report::Report``. The GIL is released. Raises ValueError naming the field of a spec that
    does not fit, RuntimeError for a run that does not come to its end.
    """

# ------------------------------------------------------------------------------------------- forests

@final
class Forest:
    """Regression trees that LightGBM has grown, from its text format. Raises ValueError naming tree and
    field; categories, several classes, linear leaves and objectives but least squares are refused.
    """

    def __new__(cls, text: str) -> Forest: ...
    @property
    def features(self) -> int:
        """Numbers in a row."""
    @property
    def trees(self) -> int:
        """Trees that are summed."""
    def predict(self, rows: Buffer) -> list[float]:
        """The trees' sum for each row: to the last bit what LightGBM says.

        ``rows``: C doubles of shape (n, features), NaN where a value is not known. The GIL is released.
        Raises ValueError for another shape, BufferError for what holds no doubles.
        """

@final
class AppendFile:
    """A file that is only appended to, made if need be, for its owner's eyes. Raises OSError, and ValueError
    once it is closed.
    """

    def __new__(cls, path: str | PathLike[str]) -> AppendFile: ...
    def append(self, data: bytes) -> int:
        """One write() of the operating system; returns how many bytes it took. It waits for that without
        letting go of the interpreter lock.
        """

    def truncate(self, size: int) -> None: ...
    def close(self) -> None: ...

def json_row(values: tuple[object, ...]) -> bytes | None:
    """The values as a JSON array and a line's end: texts, numbers, booleans, None, and tuples of them. None
    where one has no plain form: another type, NaN, an infinity, a lone surrogate, over 64 bits.
    """

# ---------------------------------------------------------------------------- what is known of a trajectory

FEATURES: Final[tuple[str, ...]]
"""Names of the numbers of `Progress.moment`, in order."""
WORD_BUCKETS: Final[int]
"""Hashed words are below this."""

@final
class Siblings:
    """Finished trajectories of one prompt: output tokens and steps of each, oldest first."""

    def __new__(cls, finished: Sequence[tuple[int, int]]) -> Siblings: ...
    def __len__(self) -> int: ...
    @property
    def finished(self) -> list[tuple[int, int]]:
        """As given."""
    @property
    def log_moments(self) -> tuple[float, float, float]:
        """Count, mean and squared deviations of the logarithms of their output tokens."""

@final
class Progress:
    """A running trajectory: figures of its steps, not the steps. Memory does not grow with them."""

    def __new__(cls, prompt_tokens: int, prompt_text: str | None) -> Progress: ...
    @property
    def steps(self) -> int: ...
    @property
    def done_tokens(self) -> int: ...
    def observe(
        self,
        output_tokens: int,
        input_tokens: int,
        tools: Sequence[str],
        seconds: float | None,
        gap_before_s: float | None,
        error_before: bool | None,
        observation: str | None,
        text: str | None,
        compacted: bool,
    ) -> None:
        """The next step has ended. ``input_tokens`` were appended to the context before it;
        ``gap_before_s``, ``error_before`` and ``observation`` are of the tool call before it.
        """
    def moment(
        self, siblings: Siblings
    ) -> tuple[int, int, bytearray, Bag | None, Bag | None, RecentText | None]:
        """What is known now: steps, output tokens of those, a double for each of `FEATURES` (NaN where it is
        not known), words of late, words of all that was said, and the text of late.
        """

@final
class Bag:
    """Hashed words, never none."""

    def __len__(self) -> int: ...
    def buckets(self) -> bytes:
        """16 bits each, ascending, each below `WORD_BUCKETS`."""

@final
class RecentText:
    """The last observation and output; ``str`` joins them."""

def weigh(bags: Sequence[Bag | None], weights: Buffer) -> list[float]:
    """For each bag the weights of its buckets: their sum over the root of their number; 0 for None.

    ``weights``: C doubles. Raises ValueError for others than `WORD_BUCKETS` of them.
    """
