"""What the core can decide about a step, under the names the rest of the gateway uses."""

from typing import Literal

from heddle_core import Dispatch, Reject

Decision = Dispatch | Reject
FailureKind = Literal["unreachable", "overloaded", "worker_error"]
"""Why an attempt failed, as the core wants to know it."""

__all__ = ["Decision", "Dispatch", "FailureKind", "Reject"]
