"""``heddle history``: looks after the history database, with or without a gateway that runs."""

import asyncio
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from heddle_gateway.settings import SettingsError, load_settings
from heddle_gateway.store.engine import StoreError, history_url, open_engine
from heddle_gateway.store.pruning import Pruned, prune
from heddle_gateway.store.schema import upgrade

app = typer.Typer(add_completion=False, help="The history database.", no_args_is_help=True)

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

Database = Annotated[str | None, typer.Option(help="SQLite file or URL of the history.")]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings.")]


@app.callback()
def history() -> None:
    """More than one command: each is named."""


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


def seconds_of(text: str) -> float:
    """Seconds of a duration such as ``90d``; s, m, h, d, w. Raises ValueError that names the option."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--older-than: {text!r} is not a duration, give one like 90d, 36h or 2w")
    return float(found[1]) * _SECONDS[found[2]]
