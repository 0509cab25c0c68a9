"""`heddle policy`: show and switch the policy of a running gateway."""

import json
from typing import Annotated, Any

import typer

from heddle_cli.admin_client import DEFAULT_GATEWAY, AdminClient, AsJson, Gateway, Key
from heddle_cli.given_numbers import from_json
from heddle_cli.terminal import print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show and switch the policy.")


def _print(policy: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(policy)
    else:
        print_table(
            ("setting", "value"),
            ((name, _shown(value)) for name, value in policy.items()),
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not name=value")
    try:
        return name, from_json(value)
    except json.JSONDecodeError:
        return name, value
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from None


@app.command("show")
def show_policy(gateway: Gateway = DEFAULT_GATEWAY, key: Key = None, as_json: AsJson = False) -> None:
    """The policy in force with all its settings."""
    _print(AdminClient(gateway, key).get("/policy"), as_json)


@app.command("set")
def set_policy(
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings as name=value, for example move_margin=1.5.")
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    order: Annotated[str | None, typer.Option(help="Who is next in a worker's queue.")] = None,
    placement: Annotated[str | None, typer.Option(help="Which worker a step goes to.")] = None,
    admission: Annotated[str | None, typer.Option(help="Whether a step waits in the gateway.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings; what is not named stays. Takes effect at the next decision."""
    named = {"order": order, "placement": placement, "admission": admission}
    change = {name: value for name, value in named.items() if value is not None}
    change |= dict(_setting(text) for text in settings or [])
    if not change:
        raise typer.BadParameter("say what to change: --order, --placement, --admission or name=value")
    client = AdminClient(gateway, key)
    before = client.get("/policy")
    after = client.put("/policy", change)
    if as_json:
        print_json(after)
        return
    print_table(
        ("setting", "was", "is"), ((name, _shown(before.get(name)), _shown(after[name])) for name in change)
    )
