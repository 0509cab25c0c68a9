"""Heddle's decision core (``Core``, ``replay``), planning (``solve``), simulation (``simulate``),
byte-path parsing (``scan_body``, ``splice``, ``StreamTap``), identity (``IdentityBook``), regression
forests (``Forest``), what they are asked with (``Progress``) and what history appends to disk (``json_row``,
``AppendFile``).
"""

import warnings

from heddle_core import _native
from heddle_core._native import (
    FEATURES,
    WORD_BUCKETS,
    Answer,
    AppendFile,
    Bag,
    CancelMigration,
    Core,
    Dispatch,
    Expire,
    Forest,
    Identity,
    IdentityBook,
    Migrate,
    Progress,
    RecentText,
    Reject,
    Scan,
    Siblings,
    SimWorkload,
    StreamTap,
    Withdraw,
    answer_lines,
    forward_lines,
    json_row,
    plain_answer,
    plain_request,
    read_answer,
    replay,
    scan_body,
    simulate,
    solve,
    splice,
    weigh,
)
from heddle_core.names import Dialect, FailureKind, HistoryUnit, MigrationFailure, Outcome
from heddle_core.plans import CostName, PlannedWorker, SolvedPlan, SolverName

Action = Dispatch | Reject | Withdraw | Migrate | CancelMigration | Expire
"""What the core wants done."""

__all__ = [
    "FEATURES",
    "WORD_BUCKETS",
    "Action",
    "Answer",
    "AppendFile",
    "Bag",
    "CancelMigration",
    "Core",
    "CostName",
    "Dialect",
    "Dispatch",
    "Expire",
    "FailureKind",
    "Forest",
    "HistoryUnit",
    "Identity",
    "IdentityBook",
    "Migrate",
    "MigrationFailure",
    "Outcome",
    "PlannedWorker",
    "Progress",
    "RecentText",
    "Reject",
    "Scan",
    "Siblings",
    "SimWorkload",
    "SolvedPlan",
    "SolverName",
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

if _native.DEBUG_BUILD:
    warnings.warn(
        "heddle_core was built for debug and is slow; run `make install`", RuntimeWarning, stacklevel=2
    )
