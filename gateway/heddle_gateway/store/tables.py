"""The SQL schema as SQLAlchemy Core tables; `migrations/` brings a database there.

Types are portable (SQLite, PostgreSQL). Times are seconds of the Unix epoch, because that is what the step
record carries and both databases compare doubles alike. `steps` has one row per ended step and its columns
are the fields of `heddle_contracts.steps.StepRecord`. `trajectories` is the running total of `steps`; every
column of it is a minimum, a maximum, a sum or "the newest", so records may be added in any order. There is no
foreign key: both are written in one transaction, and it would cost a lookup per step. `plans` and
`migrations` (moves of KV) hold what `heddle_contracts` says of each.
"""

from heddle_contracts.steps import Outcome
from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, Text

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite numbers rows itself only in a column declared INTEGER.
_RowId = BigInteger().with_variant(Integer(), "sqlite")

# Ids compare by code point everywhere, as Python's do: pages of the admin list merge with the live view.
_Id = Text().with_variant(Text(collation="C"), "postgresql")

trajectories = Table(
    "trajectories",
    metadata,
    # The id first: an id alone, without its tenant, is looked up too.
    Column("trajectory_id", _Id, primary_key=True),
    Column("tenant", _Id, primary_key=True),
    Column("group_id", Text),
    Column("sample", Integer),
    Column("parent_id", Text),
    Column("source", Text, nullable=False),
    Column("model", Text),
    Column("model_at", Double),
    Column("worker", Text),
    Column("worker_at", Double),
    Column("steps", Integer, nullable=False),
    Column("segments", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    *(Column(outcome.value, Integer, nullable=False) for outcome in Outcome),
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("ended_at", Double),
    Column("end_reason", Text),
    Index("ix_trajectories_last_seen", "last_seen", "trajectory_id", "tenant"),
    Index("ix_trajectories_group_id", "group_id"),
    Index("ix_trajectories_parent_id", "parent_id"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("trajectory_id", _Id, nullable=False),
    Column("tenant", _Id, nullable=False),
    Column("group_id", Text),
    Column("sample", Integer),
    Column("parent_id", Text),
    Column("source", Text, nullable=False),
    Column("model", Text),
    Column("dialect", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("worker", Text),
    Column("outcome", Text, nullable=False),
    Column("status", Integer),
    Column("finish_reason", Text),
    Column("tool_names", Text, nullable=False, comment="JSON list"),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("usage_known", Boolean, nullable=False),
    Column("priority_level", Integer),
    Column("arrived_at", Double, nullable=False),
    Column("dispatched_at", Double),
    Column("first_byte_at", Double),
    Column("ended_at", Double, nullable=False),
    Column("gap_before_s", Double),
    Index("ix_steps_trajectory_id", "trajectory_id", "tenant"),
    Index("ix_steps_ended_at", "ended_at"),
)

# Every plan that was kept. Versions count within a namespace; `made_at` is part of the key because two
# gateways that lost sight of each other may give one version twice, and neither plan is lost then.
plans = Table(
    "plans",
    metadata,
    Column("namespace", _Id, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("made_at", Double, primary_key=True),
    Column("expires_at", Double, nullable=False),
    Column("activated_at", Double),
    Column("activated_by", Text),
    Column("reason", Text, nullable=False),
    Column("making", Text, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("plan", Text, nullable=False, comment="JSON object: the other fields but members"),
    Column("members", Text, nullable=False, comment="JSON list of lists"),
    Column("lengths", Text, nullable=False, comment="JSON list"),
    Index("ix_plans_activated_at", "namespace", "activated_at"),
    Index("ix_plans_made_at", "made_at"),
)

# Every move of KV that has ended. `id` counts within `process`.
migrations = Table(
    "migrations",
    metadata,
    Column("process", _Id, primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("trajectory_id", _Id, nullable=False),
    Column("tenant", _Id, nullable=False),
    Column("from_worker", Text, nullable=False),
    Column("to_worker", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("tokens_landed", BigInteger, nullable=False),
    Column("bytes_moved", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("step_waited", Boolean, nullable=False),
    Column("fault", Text),
    Column("detail", Text, nullable=False),
    Column("ended_at", Double, nullable=False),
    Index("ix_migrations_ended_at", "ended_at", "process", "id"),
    Index("ix_migrations_trajectory_id", "trajectory_id", "tenant"),
)

# A spill segment is named here in the transaction that writes its records, so that a process killed between
# that and the removal of the file does not write them a second time.
spill_segments = Table(
    "spill_segments",
    metadata,
    Column("name", Text, primary_key=True),
    Column("read_at", Double, nullable=False),
)
