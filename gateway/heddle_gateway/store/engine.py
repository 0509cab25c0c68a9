"""Opens the history database and sorts its errors.

SQLite runs in WAL mode: readers of the admin API never wait for the writer. One process writes; another that
holds the lock (a backup, a shell) delays writes and nothing else.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

# How long SQLite itself waits for another process's lock; the writer's back-off waits beyond it.
SQLITE_BUSY_MS = 2_000
SQLITE_CHANGES = 20
# A network that drops packets breaks no connection: a person gets an error instead of waiting for TCP.
READ_TIMEOUT_S = 60.0
BEGIN = "heddle_begin"
"""Execution option: the statement that begins a transaction on SQLite."""

# What a statement can raise, by SQLAlchemy or past it (sqlite3 reports unfit values with built-in errors).
STORE_FAULTS = (exc.SQLAlchemyError, OSError, TimeoutError, ValueError, OverflowError)
# The database is there and will not take these values, now or later.
_REFUSALS = (exc.DataError, exc.IntegrityError, exc.ProgrammingError, ValueError, OverflowError)
# The database is away, locked, full or damaged: the same write may succeed later.
# asyncpg's errors all come as DBAPIError; the SQLSTATE's class tells: data exception, integrity, syntax or
# access rule (PostgreSQL, appendix A).
_REFUSING_CLASSES = ("22", "23", "42")
_OUTAGES = (exc.DBAPIError, exc.DisconnectionError, exc.TimeoutError, OSError, TimeoutError)


class StoreError(Exception):
    """The history database could not be opened or read. The message is fit for an operator."""


def history_url(location: str) -> URL:
    """A SQLAlchemy URL with an async driver from a URL or a plain file name.

    Raises ValueError for what is neither, or names a database that is neither SQLite nor PostgreSQL.
    """
    if not location:
        raise ValueError("no history database is named: give a file, or a URL of sqlite or postgresql")
    try:
        url = make_url(location) if "://" in location else URL.create("sqlite", database=location)
    except exc.ArgumentError as error:
        raise ValueError(f"{location!r} is not a database URL") from error
    match url.get_backend_name():
        case "sqlite":
            return url.set(drivername="sqlite+aiosqlite")
        case "postgresql":
            if url.drivername not in ("postgresql", "postgresql+asyncpg"):
                raise ValueError(f"the driver of {url.drivername} is not used: write postgresql://...")
            return url.set(drivername="postgresql+asyncpg")
        case other:
            raise ValueError(f"history database {other!r} is not known: use sqlite or postgresql")


def spill_beside(location: str) -> Path | None:
    """Where records lie until the database of this ``location`` has them: beside a SQLite file, in the
    working directory for PostgreSQL; None for a database in memory. Raises ValueError as `history_url` does.
    """
    url = history_url(location)
    if url.get_backend_name() == "sqlite":
        in_memory = url.database in (None, "", ":memory:")
        return None if in_memory else Path(f"{url.database}.spill")
    # Records of one database must not get into another.
    whose = hashlib.sha256(f"{url.host}:{url.port}/{url.database}".encode()).hexdigest()[:12]
    return Path(f"heddle-{whose}.spill")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions by its own rules and never before CREATE TABLE, so that a
    # migration cut short would leave half a schema: SQLAlchemy begins them.
    connection.isolation_level = None
    cursor: Any = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MS}")
    _change_to_wal(cursor)
    # In WAL mode this can lose the last transactions at a power cut, never corrupt: right for history.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _change_to_wal(cursor: Any) -> None:
    """SQLite waits for no lock here: of two processes that open a new file at once, one is refused."""
    for _ in range(SQLITE_CHANGES):
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone()[0] in ("wal", "memory"):
            return
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            # This it does wait for: whoever is at it.
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("COMMIT")
        else:
            return


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


def to_write_first(engine: AsyncEngine) -> AsyncEngine:
    """For transactions that read before they write: SQLite refuses one when another has written in between,
    so they have the database's lock from the start.
    """
    return (
        engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"}) if engine.dialect.name == "sqlite" else engine
    )


def open_engine(location: str) -> AsyncEngine:
    """The engine for ``location``; makes a SQLite file's folder. Connects at first use, not here.

    Raises ValueError for a location that cannot be: see `history_url`, and a folder that cannot be made.
    """
    url = history_url(location)
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            folder = Path(url.database).parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(
                    f"cannot make {folder} for the history database: {error.strerror}"
                ) from error
        engine = create_async_engine(url)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine
    return create_async_engine(url, pool_pre_ping=True)


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection to read by. What goes wrong meanwhile is a StoreError, also that it takes too long."""
    limit_s = READ_TIMEOUT_S if engine.dialect.name == "postgresql" else None
    try:
        async with asyncio.timeout(limit_s) as limit, engine.connect() as connection:
            yield connection
    except TimeoutError as fault:
        why = f"it took more than {READ_TIMEOUT_S:g} s" if limit.expired() else one_line(fault)
        raise StoreError(f"the history database cannot be read: {why}") from fault
    except STORE_FAULTS as fault:
        raise StoreError(f"the history database cannot be read: {one_line(fault)}") from fault


def is_refusal(fault: Exception) -> bool:
    """Whether a fault lies in the values, so that trying again cannot help."""
    state = getattr(getattr(fault, "orig", None), "sqlstate", None)
    if isinstance(state, str) and state.startswith(_REFUSING_CLASSES):
        return True
    return isinstance(fault, _REFUSALS) or not isinstance(fault, (*_OUTAGES, StoreError))


def one_line(fault: Exception) -> str:
    """The fault without the statement and its parameters: SQLAlchemy appends them, they are callers' data."""
    return str(fault).partition("\n")[0]
