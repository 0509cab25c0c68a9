"""The `heddle` command: a table of sub-commands that the installed parts bring.

A part registers a typer app in the entry-point group `heddle.commands`. It is imported when its command is
asked for (or listed), so that a part that is broken or half installed costs its own command and no other.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from heddle_cli.exit_codes import CommandFailed
from heddle_cli.part import load

GROUP = "heddle.commands"


def registered() -> dict[str, EntryPoint]:
    """Sub-commands by name. Of two parts that claim one name, the first by distribution has it."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(
        entry_points(group=GROUP), key=lambda one: (one.name, one.dist.name if one.dist else "")
    ):
        found.setdefault(entry.name, entry)
    return found


class CommandTable(TyperGroup):
    """Looks its commands up among the entry points when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(registered())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = registered().get(cmd_name)
        return load(entry) if entry is not None else None


app = typer.Typer(
    cls=CommandTable, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heddle {version('heddle-cli')}")
        raise typer.Exit


@app.callback()
def heddle(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Trajectory-centric gateway for rollouts of LLM agents."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `heddle` script; ends the process with one of `Exit`."""
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="heddle")
    except CommandFailed as failure:
        print(f"heddle: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
