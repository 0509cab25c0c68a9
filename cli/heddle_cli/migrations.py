"""`heddle migrations`: moves of KV between the workers of a running gateway."""

from typing import Annotated, Any

import typer

from heddle_cli.admin_client import DEFAULT_GATEWAY, AdminClient, AsJson, Gateway, Key
from heddle_cli.terminal import print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List moves of KV, and ask for one.")

COLUMNS = ("#id", "trajectory", "from", "to", "state", "asked by", "#tokens", "#landed", "#seconds", "note")

Trajectory = Annotated[str, typer.Argument(help="Id of a live trajectory.", show_default=False)]


def _row(move: dict[str, Any]) -> tuple[Any, ...]:
    waited = "a step waited" if move["step_waited"] else ""
    return (
        move["id"],
        move["trajectory_id"],
        move["from_worker"],
        move["to_worker"],
        move["state"],
        move["asked_by"],
        move["tokens"],
        move["tokens_landed"],
        f"{move['seconds']:.2f}",
        move["detail"] or move["fault"] or waited,
    )


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_table(COLUMNS, (_row(move) for move in answer["items"]))


@app.command("ls")
def list_moves(
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Only this trajectory's.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    as_json: AsJson = False,
) -> None:
    """Those under way, oldest first, then those that have ended, newest first."""
    params = {"limit": limit, "trajectory_id": trajectory}
    known = {name: value for name, value in params.items() if value is not None}
    _show(AdminClient(gateway, key).get("/migrations", known), as_json)


@app.command("ask")
def ask_move(
    trajectory: Trajectory,
    to: Annotated[str, typer.Argument(help="Name, id or URL of a worker.", show_default=False)],
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    tenant: Annotated[
        str | None, typer.Option(help="Where callers with different keys use the id.", show_default=False)
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.001, max=3600, help="Seconds that the transfer may take; by default sized by it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move a trajectory's KV to a worker: at once in its tool gap, else in the next one within a minute."""
    body = {"trajectory_id": trajectory, "to": to, "tenant": tenant, "deadline_s": deadline}
    _show(
        AdminClient(gateway, key).post(
            "/migrations", {name: value for name, value in body.items() if value is not None}
        ),
        as_json,
    )
