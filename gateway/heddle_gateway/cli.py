"""``heddle gateway``: serves until SIGTERM or Ctrl-C, then lets running steps end."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle_gateway.settings import Settings, SettingsError, load_settings

app = typer.Typer(add_completion=False, help="The OpenAI-compatible gateway.", invoke_without_command=True)


@app.callback()
def gateway(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (default 8000).")] = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a running server; may be given more than once.")
    ] = None,
    worker_key: Annotated[
        str | None, typer.Option(help="API key of these servers.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; docs/REFERENCE.md has all of them.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The core's policy as JSON.")] = None,
    order: Annotated[str | None, typer.Option(help="Who is next in a worker's queue.")] = None,
    placement: Annotated[str | None, typer.Option(help="Which worker a step goes to.")] = None,
    admission: Annotated[str | None, typer.Option(help="Whether a step waits in the gateway.")] = None,
    database: Annotated[str | None, typer.Option(help="SQLite file or URL of the history.")] = None,
    redis: Annotated[
        str | None, typer.Option(help="URL of the Redis that keeps live state (redis://host:6379/0).")
    ] = None,
    planner: Annotated[str | None, typer.Option(help="URL of a running planner.")] = None,
    journal: Annotated[Path | None, typer.Option(help="File for the journal of the core's events.")] = None,
) -> None:
    """Serve agents: one process, one port, all workers behind it."""
    try:
        settings = load_settings(
            config,
            host=host,
            port=port,
            workers=_workers(worker, worker_key),
            policy=_policy(policy, order=order, placement=placement, admission=admission),
            database=database,
            redis_url=redis,
            planner=planner,
            journal_path=journal,
        )
    except SettingsError as error:
        typer.echo(f"heddle gateway: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(_serve(settings))


def _workers(urls: list[str] | None, key: str | None) -> list[dict[str, str]] | None:
    said = {} if key is None else {"api_key": key}
    return [{"url": url, **said} for url in urls or ()] or None


def _policy(text: str | None, **named: str | None) -> dict[str, Any] | None:
    """The policy given on the command line; None where nothing was. Raises SettingsError."""
    policy: Any = {}
    if text is not None:
        try:
            policy = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"policy: not JSON: {error}") from error
        if not isinstance(policy, dict):
            raise SettingsError("policy: not a JSON object")
    policy.update({name: value for name, value in named.items() if value is not None})
    return policy or None


def _serve(settings: Settings) -> int:
    # Imported late: `heddle --help` lists this command without loading a web server.
    from heddle_gateway.heddle_app import StartError
    from heddle_gateway.serving import serve

    try:
        return serve(settings)
    except StartError as error:
        typer.echo(f"heddle gateway: {error}", err=True)
        return 2
