"""`heddle plan`: show, compute, activate and explain plans of a running gateway; plan a file of lengths.

The planner's own command, which needs no gateway, is a sub-command by entry point (group ``heddle.plan``):
`heddle plan --lengths FILE ...` is `heddle plan lengths --lengths FILE ...`.
"""

import time
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from heddle_cli.admin_client import DEFAULT_GATEWAY, PLAN_TIMEOUT_S, AdminClient, AsJson, Gateway, Key
from heddle_cli.given_numbers import lengths_of
from heddle_cli.part import load
from heddle_cli.terminal import ago, print_facts, print_json, print_table

GROUP = "heddle.plan"
LENGTHS = "lengths"


class PlanCommands(TyperGroup):
    """Options without a sub-command are those of the planner's command for files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [LENGTHS, *args]
        return list(super().parse_args(ctx, args))

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *_of_other_parts()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = _of_other_parts().get(cmd_name)
        return load(entry) if entry is not None else super().get_command(ctx, cmd_name)


def _of_other_parts() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


app = typer.Typer(
    cls=PlanCommands,
    no_args_is_help=True,
    add_completion=False,
    help="Who runs where: plans of a running gateway, and of a file of lengths (--lengths FILE ...).",
)

Version = Annotated[
    int | None, typer.Argument(help="Version of a plan; the current one if not given.", show_default=False)
]


@app.command("show")
def show_plan(
    version: Version = None,
    every: Annotated[bool, typer.Option("--all", help="List plans, newest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="With --all: show at most so many.")] = 50,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """A plan with its shares and the alternatives it was rehearsed against."""
    client = AdminClient(gateway, key)
    if every:
        _list(client, limit, as_json)
        return
    _show(client.get(f"/plans/{'current' if version is None else version}"), as_json)


@app.command("compute")
def compute_plan(
    lengths: Annotated[
        Path | None,
        typer.Option(help="Lengths to plan for, one number a line; without it what is live is planned."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs to cut into workers.")] = None,
    degrees: Annotated[str | None, typer.Option(help="MP degrees a worker may have, such as 1,2,4.")] = None,
    solver: Annotated[str | None, typer.Option(help="exact, dp or anneal.")] = None,
    cost: Annotated[str | None, typer.Option(help="size_only or simulated.")] = None,
    profile: Annotated[str | None, typer.Option(help="Name of a packaged profile.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, do not keep it.")] = False,
    activate: Annotated[bool, typer.Option("--activate", help="Put it in force at once.")] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a plan now."""
    if dry_run and activate:
        raise typer.BadParameter("a dry run cannot be activated", param_hint="--activate")
    asked = {
        "lengths": lengths_of(lengths) if lengths is not None else None,
        "gpus": gpus,
        "degrees": _integers(degrees) if degrees is not None else None,
        "solver": solver,
        "cost": cost,
        "profile": profile,
        "dry_run": dry_run or None,
    }
    client = AdminClient(gateway, key)
    given = {name: value for name, value in asked.items() if value is not None}
    plan = client.post("/plans", given, timeout_s=PLAN_TIMEOUT_S, look="heddle plan show --all")
    if activate:
        plan = client.post(f"/plans/{plan['version']}/activate")["plan"]
    _show(plan, as_json)


@app.command("activate")
def activate_plan(
    version: Annotated[int, typer.Argument(help="Version of the plan; an older one to roll back.")],
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Put a plan in force."""
    done = AdminClient(gateway, key).post(f"/plans/{version}/activate")
    if as_json:
        print_json(done)
        return
    print(f"plan {version} is in force, placement {done['plan']['placement']}")
    for share in done["fleet"]:
        print(f"  {share}")


@app.command("explain")
def explain_plan(
    version: Version = None,
    trajectories: Annotated[int, typer.Option(min=0, help="How many trajectories are explained.")] = 10,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """A plan in plain words."""
    client = AdminClient(gateway, key)
    if version is None:
        version = client.get("/plans/current")["version"]
    told = client.get(f"/plans/{version}/explain", {"trajectories": trajectories})
    if as_json:
        print_json(told)
        return
    print(f"Plan {version}. {told['summary']}\n")
    for worker in told["workers"]:
        print(f"- {worker['text']}")
    if told["trajectories"]:
        print("\nThe longest trajectories:")
    for one in told["trajectories"]:
        print(f"- {one['trajectory_id']}: {one['text']}")
    if told["alternatives"]:
        print("\nWhat was tried:")
    for alternative in told["alternatives"]:
        print(f"- {alternative}")
    print("\nWords:")
    for word, meaning in told["words"].items():
        print(f"- {word}: {meaning}")


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list such as 1,2,4", param_hint="--degrees") from None


def _list(client: AdminClient, limit: int, as_json: bool) -> None:
    items: list[dict[str, Any]] = []
    for page in client.pages("/plans", {"limit": min(limit, 500)}):
        items += page["items"]
        plans, more = page, page["next_cursor"] is not None or len(items) > limit
        if len(items) >= limit:
            break
    items = items[:limit]
    if as_json:
        about = {name: plans[name] for name in ("current", "planner", "history")}
        print_json({"items": items, "more": more, **about})
        return
    print_table(
        ("#version", "state", "reason", "placement", "#trajectories", "#expected", "#bound", "#made"),
        (
            (
                plan["version"],
                plan["state"],
                plan["reason"],
                plan["placement"] if plan["making"] == "no_shares" else "shares",
                plan["trajectories"],
                f"{plan['expected_makespan_s']:.1f} s",
                f"{plan['lower_bound_s']:.1f} s",
                ago(plan["made_at"]),
            )
            for plan in items
        ),
    )
    if more:
        print(f"... more than {limit}; raise --limit")
    if plans["history"]:
        print(f"older ones are missing: {plans['history']}")
    print(f"planner: {plans['planner']}; in force: {plans['current'] or 'none'}")


def _show(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    left = plan["expires_at"] - time.time()
    print_facts(
        (
            ("version", plan["version"] or "none (dry run)"),
            ("state", plan["state"]),
            ("made", f"{ago(plan['made_at'])} ago, reason: {plan['reason']}"),
            ("holds for", f"{left:.0f} s" if left > 0 else "expired"),
            ("placement", plan["placement"] + (", by shares" if plan["making"] == "shares" else "")),
            ("expected", f"{plan['expected_makespan_s']:.1f} s for {plan['trajectories']} trajectories"),
            ("lower bound", f"{plan['lower_bound_s']:.1f} s"),
            ("profile", plan["profile"]),
            ("solver", f"{plan['solver']}, cost {plan['cost']}, {1e3 * plan['solve_seconds']:.1f} ms"),
            ("inputs", plan["inputs_digest"]),
        )
    )
    print()
    print_table(
        ("worker", "#degree", "ranks", "#trajectories", "#longest", "#tokens", "#seconds", "limited by"),
        (
            (
                share["name"] or "new",
                share["degree"],
                _ranks(share),
                share["size"],
                f"{share['longest']:.0f}" if share["longest"] is not None else None,
                f"{share['tokens']:.0f}",
                f"{share['seconds']:.1f}",
                share["limited_by"].replace("_", " "),
            )
            for share in plan["shares"]
        ),
    )
    if plan["alternatives"]:
        print()
        print_table(
            ("alternative", "#expected", "#worst"),
            (
                (one["name"], f"{one['expected_makespan_s']:.1f} s", f"{one['worst_makespan_s']:.1f} s")
                for one in plan["alternatives"]
            ),
        )


def _ranks(share: dict[str, Any]) -> str | None:
    if not share["size"]:
        return None
    first: int = share["first_rank"]
    return str(first) if share["size"] == 1 else f"{first}-{first + share['size'] - 1}"
