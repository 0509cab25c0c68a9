"""``heddle history``: looks after the history database, with or without a gateway that runs."""

import asyncio
import csv
import json
import re
import time
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from heddle_contracts.admin import TrajectoryFilter

from heddle_gateway.settings import SettingsError, load_settings
from heddle_gateway.store.engine import StoreError, history_url, open_engine
from heddle_gateway.store.exporting import export
from heddle_gateway.store.pruning import Pruned, prune
from heddle_gateway.store.schema import upgrade

app = typer.Typer(add_completion=False, help="The history database.", no_args_is_help=True)

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

Database = Annotated[str | None, typer.Option(help="SQLite file or URL of the history.")]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings.")]


@app.command("prune")
def prune_command(
    older_than: Annotated[str, typer.Option(help="Age of what goes: 90d, 36h, 2w.")],
    database: Database = None,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option(help="Count what would go, remove nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove old trajectories, each wholly with its steps, and old plans and moves of KV."""
    try:
        age = seconds_of(older_than)
        location = load_settings(config, database=database).database
        _must_be_there(location)
        removed = asyncio.run(_prune(location, age, dry_run))
    except (SettingsError, ValueError, StoreError) as error:
        typer.echo(f"heddle history prune: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps({**asdict(removed), "dry_run": dry_run}))
        return
    verb = "would be removed" if dry_run else "removed"
    typer.echo(
        f"{removed.trajectories} trajectories with {removed.steps} steps, {removed.plans} plans and"
        f" {removed.migrations} moves of KV {verb}"
    )


@app.command("export")
def export_command(
    out: Annotated[Path, typer.Option(help="File to write: NAME.csv, or JSON lines as NAME.jsonl.")],
    steps: Annotated[bool, typer.Option("--steps", help="A row a step instead of a trajectory.")] = False,
    since: Annotated[
        str | None, typer.Option(help="Only trajectories seen within the last 2h, 7d.", show_default=False)
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only ids that begin with this.")] = None,
    group: Annotated[str | None, typer.Option(help="Only those of this group.")] = None,
    model: Annotated[str | None, typer.Option(help="Only those of this model.")] = None,
    database: Database = None,
    config: Config = None,
) -> None:
    """Write trajectories, or their steps, with tokens and times as CSV or JSON lines."""
    try:
        if out.suffix not in (".csv", ".jsonl"):
            raise ValueError(f"--out: {out} ends neither in .csv nor in .jsonl")
        wanted = TrajectoryFilter(
            since=None if since is None else time.time() - seconds_of(since, "--since"),
            prefix=prefix,
            group=group,
            model=model,
        )
        location = load_settings(config, database=database).database
        _must_be_there(location)
        count = asyncio.run(_export(location, wanted, out, steps))
    except (SettingsError, ValueError, StoreError) as error:
        typer.echo(f"heddle history export: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        typer.echo(f"heddle history export: --out {out}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"{out}: {count} {'steps' if steps else 'trajectories'}")


async def _export(location: str, wanted: TrajectoryFilter, out: Path, of_steps: bool) -> int:
    """Rows written. The file appears whole or not at all."""
    engine = open_engine(location)
    part = out.with_name(out.name + ".part")
    count = 0
    try:
        await upgrade(engine)
        with part.open("w", newline="", encoding="utf-8") as file:
            table: csv.DictWriter[str] | None = None
            async with aclosing(export(engine, wanted, of_steps=of_steps)) as rows:
                async for row in rows:
                    count += 1
                    if out.suffix == ".jsonl":
                        file.write(json.dumps(row) + "\n")
                        continue
                    if table is None:
                        table = csv.DictWriter(file, list(row))
                        table.writeheader()
                    table.writerow(
                        {name: " ".join(one) if isinstance(one, list) else one for name, one in row.items()}
                    )
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
        await engine.dispose()
    return count


def _must_be_there(location: str) -> None:
    """Raises StoreError for a SQLite file that opening would make: a mistyped name is no empty history."""
    url = history_url(location)
    if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
        raise StoreError(f"there is no history at {location}; name it with --database or --config")


async def _prune(location: str, age_s: float, dry_run: bool) -> Pruned:
    engine = open_engine(location)
    try:
        await upgrade(engine)
        return await prune(engine, age_s, dry_run=dry_run)
    finally:
        await engine.dispose()


def seconds_of(text: str, option: str = "--older-than") -> float:
    """Seconds of a duration such as ``90d``; s, m, h, d, w. Raises ValueError that names the option."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{option}: {text!r} is not a duration, give one like 90d, 36h or 2w")
    return float(found[1]) * _SECONDS[found[2]]
