"""Plans that were kept, and moves of KV that have ended."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Compared by code point on every database.
ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("namespace", ID, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("activated_at", sa.Double()),
        sa.Column("activated_by", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("making", sa.Text(), nullable=False),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False, comment="JSON object: the other fields but members"),
        sa.Column("members", sa.Text(), nullable=False, comment="JSON list of lists"),
        sa.Column("lengths", sa.Text(), nullable=False, comment="JSON list"),
        sa.PrimaryKeyConstraint("namespace", "version", "made_at", name="pk_plans"),
    )
    op.create_index("ix_plans_activated_at", "plans", ["namespace", "activated_at"])
    op.create_index("ix_plans_made_at", "plans", ["made_at"])
    op.create_table(
        "migrations",
        sa.Column("process", ID, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trajectory_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("from_worker", sa.Text(), nullable=False),
        sa.Column("to_worker", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens_landed", sa.BigInteger(), nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("step_waited", sa.Boolean(), nullable=False),
        sa.Column("fault", sa.Text()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("process", "id", name="pk_migrations"),
    )
    op.create_index("ix_migrations_ended_at", "migrations", ["ended_at", "process", "id"])
    op.create_index("ix_migrations_trajectory_id", "migrations", ["trajectory_id", "tenant"])


def downgrade() -> None:
    op.drop_table("migrations")
    op.drop_table("plans")
