"""Heddle's decision core (``Core``, ``replay``), planning (``solve``), simulation (``simulate``),
byte-path parsing (``scan_body``, ``splice``, ``StreamTap``), identity (``IdentityBook``), regression
forests (``Forest``) and what history appends to disk (``json_row``, ``AppendFile``).
"""

import warnings

from heddle_core import _native
from heddle_core._native import (
    Answer,
    AppendFile,
    CancelMigration,
    Core,
    Dispatch,
    Expire,
    Forest,
    Identity,
    IdentityBook,
    Migrate,
    Reject,
    Scan,
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
)
from heddle_core.names import Dialect, FailureKind, HistoryUnit, MigrationFailure, Outcome
from heddle_core.plans import CostName, PlannedWorker, SolvedPlan, SolverName

Action = Dispatch | Reject | Withdraw | Migrate | CancelMigration | Expire
"""What the core wants done."""

__all__ = [
    "Action",
    "Answer",
    "AppendFile",
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
    "Reject",
    "Scan",
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
]

if _native.DEBUG_BUILD:
    warnings.warn(
        "heddle_core was built for debug and is slow; run `make install`", RuntimeWarning, stacklevel=2
    )
