"""Brings the history database to the schema of this build, by the Alembic scripts of `migrations/`.

The scripts ship inside this package (`heddle_gateway/migrations`, in a clone a link to the top-level folder),
so an installed gateway upgrades its database without a checkout or an ini file.
"""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from heddle_gateway.store.engine import STORE_FAULTS, StoreError, one_line, to_write_first
from heddle_gateway.store.tables import metadata

MIGRATIONS = Path(__file__).parent.parent / "migrations"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["target_metadata"] = metadata
    return config


def newest_revision() -> str:
    """The revision this build writes and reads."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise StoreError(f"no migrations in {MIGRATIONS}: the installation is incomplete")
    return head


async def upgrade(engine: AsyncEngine, revision: str = "head") -> None:
    """Runs what is missing, in one transaction.

    Raises StoreError when the database is away, or newer than this build.
    """
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    try:
        async with to_write_first(engine).begin() as connection:
            found = await connection.run_sync(_revision)
            if found is not None and found not in known:
                raise StoreError(
                    f"the history database is at revision {found}, which this build does not know: "
                    "start the newer gateway, or another database"
                )
            await connection.run_sync(lambda sync: command.upgrade(_config(sync), revision))
    except STORE_FAULTS as fault:
        raise StoreError(f"the history database cannot be opened: {one_line(fault)}") from fault


async def downgrade(engine: AsyncEngine, revision: str) -> None:
    """Undoes migrations down to ``revision`` (``base`` removes all tables and their rows)."""
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: command.downgrade(_config(sync), revision))


async def revision_of(engine: AsyncEngine) -> str | None:
    """The revision the database is at; None for an empty one."""
    async with engine.connect() as connection:
        return await connection.run_sync(_revision)


async def differences(engine: AsyncEngine) -> list[str]:
    """What `alembic check` would report: differences between the database and `tables.py`."""
    async with engine.connect() as connection:
        return await connection.run_sync(_differences)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _differences(connection: Connection) -> list[str]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [repr(difference) for difference in compare_metadata(context, metadata)]
