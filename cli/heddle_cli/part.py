"""A command that another part brings: loaded when it is asked for, so that a broken part costs its own
command only.
"""

from importlib.metadata import EntryPoint
from typing import Any

import typer

from heddle_cli.exit_codes import CommandFailed, Exit


def load(entry: EntryPoint) -> Any:
    """The command of an entry point, or one that says why there is none."""
    try:
        command = typer.main.get_command(entry.load())
    # The boundary to code of other parts: whatever it raises at import is its own command's failure.
    except Exception as fault:  # noqa: BLE001
        return _broken(entry, f"{type(fault).__name__}: {fault}")
    command.name = entry.name
    return command


def _broken(entry: EntryPoint, why: str) -> Any:
    part = entry.dist.name if entry.dist else entry.value
    stub = typer.Typer(add_completion=False)

    @stub.command(
        help=f"(cannot be loaded: {why})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def broken() -> None:
        raise CommandFailed(Exit.FAILED, f"{entry.name}: {part} cannot be loaded: {why}")

    command = typer.main.get_command(stub)
    command.name = entry.name
    return command
