"""Many rows in one statement, in each driver's own words.

Rows go to the driver as tuples: SQLAlchemy's own handling of parameters costs 25 us a row, on the event loop
that serves requests. `benchmarks/bench_history.py` measures what these cost.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Table, bindparam, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.dml import ValuesBase

Row = tuple[Any, ...]


class ManyRows(Protocol):
    """``parameters``: names of a row's values, in order."""

    @property
    def parameters(self) -> tuple[str, ...]: ...
    async def execute(self, connection: AsyncConnection, rows: Sequence[Row]) -> None: ...


def many_rows(statement: ValuesBase, engine: AsyncEngine) -> ManyRows:
    """An insert of one row as one of many. On PostgreSQL no two rows of a call may have one key."""
    return (_SqliteRows if engine.dialect.name == "sqlite" else _Arrays)(statement, engine)


def many_new_rows(table: Table, engine: AsyncEngine) -> ManyRows:
    """Adds rows to a table whose first column the database numbers itself. On PostgreSQL another statement of
    the transaction has to come before.
    """
    columns = table.columns[1:]
    if engine.dialect.name == "sqlite":
        return _SqliteRows(table.insert().values({one.name: bindparam(one.name) for one in columns}), engine)
    return _Copy(table.name, tuple(column.name for column in columns))


def _compiled(statement: ValuesBase, engine: AsyncEngine) -> tuple[str, tuple[str, ...]]:
    compiled = statement.compile(dialect=engine.dialect)
    assert compiled.positiontup is not None, "a driver that takes parameters by position"
    return str(compiled), tuple(compiled.positiontup)


class _SqliteRows:
    """SQLite's driver lets go of the interpreter lock at each execution and has to get it back from a busy
    event loop: so many rows go into one execution (12 us a row one by one, 4 us together, at a busy loop).
    Their numbers are powers of two, so that few statements have to be prepared.
    """

    MOST_ROWS = 256

    def __init__(self, statement: ValuesBase, engine: AsyncEngine) -> None:
        self._sql, self.parameters = _compiled(statement, engine)
        self._one_row = f"({', '.join('?' * len(self.parameters))})"

    async def execute(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        start = 0
        while start < len(rows):
            count = min(self.MOST_ROWS, 1 << (len(rows) - start).bit_length() - 1)
            sql = self._sql.replace(self._one_row, ", ".join([self._one_row] * count), 1)
            await connection.exec_driver_sql(sql, tuple(chain.from_iterable(rows[start : start + count])))
            start += count


class _Arrays:
    """PostgreSQL gets one array a column: one execution instead of one a row."""

    def __init__(self, statement: ValuesBase, engine: AsyncEngine) -> None:
        sql, self.parameters = _compiled(statement, engine)
        head, values, rest = re.split(r" VALUES \((.*?)\)(?= ON CONFLICT)", sql, maxsplit=1)
        # Arrays have no collation; the columns they go to do.
        arrays = re.sub(r'(\$\d+::[A-Z ]+?)( COLLATE "C")?(?=,|$)', r"\1[]", values)
        assert arrays.count("[]") == len(self.parameters)
        self._sql = f"{head} SELECT * FROM unnest({arrays}){rest}"

    async def execute(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        columns = tuple(list(column) for column in zip(*rows, strict=True))
        await connection.exec_driver_sql(self._sql, columns)


class _Copy:
    """PostgreSQL's COPY: half of the server's work, and less of the event loop's."""

    def __init__(self, table: str, columns: tuple[str, ...]) -> None:
        self._table = table
        self.parameters = columns

    async def execute(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        """Raises what SQLAlchemy would raise of a statement."""
        driver: Any = (await connection.get_raw_connection()).driver_connection
        # SQLAlchemy begins the transaction with its first statement; outside of it the rows would be there
        # whatever becomes of the rest.
        assert driver.is_in_transaction(), "another statement comes first"
        try:
            await driver.copy_records_to_table(self._table, records=rows, columns=self.parameters)
        except ValueError:
            raise  # the values: sorted as what any driver says of them
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise exc.DBAPIError(f"COPY {self._table}", None, error) from error
