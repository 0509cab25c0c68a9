"""Trajectories and their ended steps; the spill segments already read back."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Compared by code point on every database.
ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "trajectories",
        sa.Column("trajectory_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("group_id", sa.Text()),
        sa.Column("sample", sa.Integer()),
        sa.Column("parent_id", sa.Text()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("model_at", sa.Double()),
        sa.Column("worker", sa.Text()),
        sa.Column("worker_at", sa.Double()),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("segments", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("aborted", sa.Integer(), nullable=False),
        sa.Column("worker_lost", sa.Integer(), nullable=False),
        sa.Column("client_error", sa.Integer(), nullable=False),
        sa.Column("worker_error", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("timed_out", sa.Integer(), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("end_reason", sa.Text()),
        sa.PrimaryKeyConstraint("trajectory_id", "tenant", name="pk_trajectories"),
    )
    op.create_index("ix_trajectories_last_seen", "trajectories", ["last_seen", "trajectory_id", "tenant"])
    op.create_index("ix_trajectories_group_id", "trajectories", ["group_id"])
    op.create_index("ix_trajectories_parent_id", "trajectories", ["parent_id"])
    op.create_table(
        "steps",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("trajectory_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("group_id", sa.Text()),
        sa.Column("sample", sa.Integer()),
        sa.Column("parent_id", sa.Text()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("tool_names", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("usage_known", sa.Boolean(), nullable=False),
        sa.Column("priority_level", sa.Integer()),
        sa.Column("arrived_at", sa.Double(), nullable=False),
        sa.Column("dispatched_at", sa.Double()),
        sa.Column("first_byte_at", sa.Double()),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("gap_before_s", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
    )
    op.create_index("ix_steps_trajectory_id", "steps", ["trajectory_id", "tenant"])
    op.create_index("ix_steps_ended_at", "steps", ["ended_at"])
    op.create_table(
        "spill_segments",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("read_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_spill_segments"),
    )


def downgrade() -> None:
    op.drop_table("spill_segments")
    op.drop_table("steps")
    op.drop_table("trajectories")
