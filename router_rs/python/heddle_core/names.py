"""Names that cross between Python and the native module as plain strings."""

from typing import Literal

Outcome = Literal["done", "aborted", "worker_lost", "client_error", "worker_error", "rejected", "timed_out"]
FailureKind = Literal["unreachable", "overloaded", "worker_error"]
MigrationFailure = Literal[
    "cancelled", "declined", "target_full", "mismatch", "deadline", "unreachable", "broken"
]
Dialect = Literal["chat", "completions", "generate", "tokens", "messages", "responses"]
HistoryUnit = Literal["messages", "bytes", "tokens", "opaque"]
"""What lengths of a history count: messages, bytes of text, token ids; opaque: a batch, or nothing."""
