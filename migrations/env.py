"""Alembic's entry: runs the scripts of `versions/` on a connection.

The gateway hands its own connection and tables over in the config's attributes; the `alembic` command opens
the database of `-x url=...` or of alembic.ini.
"""

import asyncio

from alembic import context
from sqlalchemy import Connection, MetaData


def target_metadata() -> MetaData:
    given: MetaData | None = context.config.attributes.get("target_metadata")
    if given is not None:
        return given
    from heddle_gateway.store.tables import metadata

    return metadata


def run_on(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=target_metadata(),
        compare_type=True,
        # All or nothing; SQLite can too, though Alembic does not expect it.
        transactional_ddl=True,
        # SQLite alters a table by copying it.
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_on_own_connection() -> None:
    from heddle_gateway.store.engine import open_engine

    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.get_main_option(
        "sqlalchemy.url"
    )
    assert url, "no database: give -x url=..."
    engine = open_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(run_on)
    await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("SQL scripts (--sql) are not offered: the migrations look at the database they run on")
if (connection := context.config.attributes.get("connection")) is not None:
    run_on(connection)
else:
    asyncio.run(run_on_own_connection())
