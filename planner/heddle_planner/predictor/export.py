"""The gateway's history as recorded trajectories.

Reads the tables ``trajectories`` and ``steps`` of the gateway's schema, by name: the planner does not import
the gateway. Steps that were not answered are left out. A trajectory is ``finished`` where its owner said so
or it fell silent long enough for the gateway to close it; others were under way, and count as cut off.
"""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Connection, and_, column, create_engine, exc, select, table
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from heddle_planner.predictor.records import SCHEMA_VERSION, DataError

_STEPS: Final = table(
    "steps",
    *map(
        column,
        (
            "id",
            "trajectory_id",
            "tenant",
            "group_id",
            "sample",
            "model",
            "step",
            "outcome",
            "finish_reason",
            "tool_names",
            "prompt_tokens",
            "output_tokens",
            "usage_known",
            "arrived_at",
            "dispatched_at",
            "ended_at",
            "gap_before_s",
        ),
    ),
)
_TRAJECTORIES: Final = table("trajectories", column("trajectory_id"), column("tenant"), column("end_reason"))


def export_history(location: str, out: Path) -> int:
    """Writes ``out`` and gives the number of trajectories. Raises DataError, OSError."""
    url = _url(location)
    partial = out.with_name(out.name + ".part")
    try:
        partial.touch()
    except OSError as error:
        raise DataError(f"--out {out}: {error.strerror}") from error
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url)
            with engine.connect() as connection:
                count = _write(connection, partial)
            engine.dispose()
        else:
            count = asyncio.run(_from_postgresql(url, partial))
    except ImportError as error:
        raise DataError(f"--database: {error}; install asyncpg") from error
    except (exc.SQLAlchemyError, ValueError, OSError, OverflowError) as error:  # a port beyond 65535
        partial.unlink(missing_ok=True)
        raise DataError(f"{location}: cannot be read as a history: {str(error).splitlines()[0]}") from error
    if count == 0:
        partial.unlink()
        raise DataError(f"{location}: holds no answered step; nothing was written")
    partial.replace(out)
    return count


async def _from_postgresql(url: URL, path: Path) -> int:
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_write, path)
    finally:
        await engine.dispose()


def _write(connection: Connection, path: Path) -> int:
    count = 0
    with _writer(path) as stream:
        for rows in _by_trajectory(connection):
            stream.write((json.dumps(_record(rows)) + "\n").encode())
            count += 1
    return count


def _url(location: str) -> URL:
    try:
        url = make_url(location) if "://" in location else URL.create("sqlite", database=location)
    except exc.ArgumentError as error:
        raise DataError(f"--database: {location!r} is not a database URL") from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or not Path(url.database).is_file():
            raise DataError(f"--database: there is no file {url.database!r}; name the gateway's history")
        return url.set(drivername="sqlite")
    if backend == "postgresql":
        # The gateway's own driver.
        return url.set(drivername="postgresql+asyncpg")
    raise DataError(f"--database: {backend!r} is not known: use sqlite or postgresql")


def _writer(path: Path) -> IO[bytes]:
    # The name without `.part` says which; gzip's header holds no time, so that equal data gives equal files.
    if path.name.endswith(".gz.part"):
        return gzip.GzipFile(path, "wb", mtime=0)  # type: ignore[return-value]
    return path.open("wb")


def _by_trajectory(connection: Connection) -> Iterator[list[Any]]:
    ended = and_(
        _STEPS.c.trajectory_id == _TRAJECTORIES.c.trajectory_id, _STEPS.c.tenant == _TRAJECTORIES.c.tenant
    )
    query = (
        select(*_STEPS.c, _TRAJECTORIES.c.end_reason)
        .select_from(_STEPS.outerjoin(_TRAJECTORIES, ended))
        .where(_STEPS.c.outcome == "done")
        .order_by(_STEPS.c.tenant, _STEPS.c.trajectory_id, _STEPS.c.step, _STEPS.c.id)
    )
    held: list[Any] = []
    for row in connection.execute(query, execution_options={"yield_per": 1000}):
        if held and (row.tenant, row.trajectory_id) != (held[0].tenant, held[0].trajectory_id):
            yield held
            held = []
        held.append(row)
    if held:
        yield held


def _record(rows: list[Any]) -> dict[str, Any]:
    """The format of `records`; a gap belongs there to the step that asked for the tool."""
    first = rows[0]
    steps: list[dict[str, Any]] = []
    context = 0
    for index, row in enumerate(rows):
        tools = json.loads(row.tool_names)
        appended = row.prompt_tokens - context if index else 0
        if index:
            steps[-1]["tool_seconds"] = row.gap_before_s
        started = row.dispatched_at if row.dispatched_at is not None else row.arrived_at
        step = {
            "input_new_tokens": max(0, appended),
            "output_tokens": row.output_tokens,
            "tool": "+".join(tools) or None,
            "tool_seconds": None,
            "tool_error": None,
            "llm_seconds": max(0.0, row.ended_at - started),
            "stop": row.finish_reason,
        }
        if appended < 0:
            step["context_reset"] = True
        steps.append(step)
        context = row.prompt_tokens + row.output_tokens
    group = first.group_id if first.group_id is not None else first.trajectory_id
    return {
        "schema_version": SCHEMA_VERSION,
        "id": f"{first.tenant}/{first.trajectory_id}",
        "task_id": f"{first.tenant}/{group}",
        "domain": first.tenant,
        "sample": first.sample,
        "model": first.model or "",
        "prompt_tokens0": first.prompt_tokens,
        "started_at": first.arrived_at,
        "finished": first.end_reason is not None,
        "steps": steps,
    }
