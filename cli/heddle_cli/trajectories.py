"""`heddle trajectories`: list, show and finish trajectories of a running gateway."""

import re
import time
from typing import Annotated, Any

import typer
from heddle_contracts.admin import Phase, TrajectorySort

from heddle_cli.admin_client import DEFAULT_GATEWAY, AdminClient, AsJson, Gateway, Key, path_of
from heddle_cli.exit_codes import CommandFailed
from heddle_cli.terminal import ago, print_facts, print_json, print_table, share
from heddle_cli.workers import worker_named

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, show and finish trajectories.")

Id = Annotated[str, typer.Argument(help="The trajectory's id.", show_default=False)]
Tenant = Annotated[str | None, typer.Option(help="Which caller's, where several use the same id.")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_ago(text: str | None) -> float | None:
    """An epoch time from "15m" (that long ago) or an epoch time itself."""
    if text is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return time.time() - float(found[1]) * _UNITS[found[2]]
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither like 15m, 2h, 1d nor a Unix time") from None


@app.command("ls")
def list_trajectories(
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    phase: Annotated[Phase | None, typer.Option(help="Only those in this phase.")] = None,
    model: Annotated[str | None, typer.Option(help="Only those of this model.")] = None,
    worker: Annotated[
        str | None, typer.Option(help="Only those at home on this worker: its id, name or URL.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only those of this group.")] = None,
    source: Annotated[str | None, typer.Option(help="Only those found by this identity rule.")] = None,
    tenant: Tenant = None,
    prefix: Annotated[str | None, typer.Option(help="Only ids that begin with this.")] = None,
    since: Annotated[str | None, typer.Option(help="Only those seen since: 15m, 2h, a Unix time.")] = None,
    sort: Annotated[
        TrajectorySort, typer.Option(help="Order; a leading minus is descending.")
    ] = TrajectorySort.LAST_SEEN_DESC,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Newest first; live ones and past ones."""
    client = AdminClient(gateway, key)
    params = {
        "phase": phase.value if phase else None,
        "model": model,
        "worker": None if worker is None else _name_of(worker, client),
        "group": group,
        "source": source,
        "tenant": tenant,
        "prefix": prefix,
        "since": seconds_ago(since),
        "sort": sort.value,
        "limit": min(limit, 500),
    }
    items: list[dict[str, Any]] = []
    more = False
    for page in client.pages("/trajectories", params):
        items += page["items"]
        more = page["next_cursor"] is not None or len(items) > limit
        if len(items) >= limit:
            break
    items = items[:limit]
    if as_json:
        print_json({"items": items, "more": more})
        return
    print_table(
        ("id", "phase", "#steps", "#output", "#cached", "worker", "model", "group", "source", "#seen"),
        (
            (
                one["trajectory_id"],
                one["phase"],
                one["steps"],
                one["output_tokens"],
                share(one["cached_tokens"], one["prompt_tokens"]),
                one["worker"],
                one["model"],
                one["group_id"],
                one["source"],
                ago(one["last_seen"]),
            )
            for one in items
        ),
    )
    if more:
        print(f"... more than {limit}; raise --limit or narrow the list")


def _name_of(worker: str, client: AdminClient) -> str:
    """By which trajectories know it. A worker that has left is known by its name alone."""
    try:
        return str(worker_named(worker, client.get("/workers")["items"])["name"])
    except CommandFailed:
        if worker.isdecimal() or "://" in worker:
            raise
        return worker


@app.command("show")
def show_trajectory(
    trajectory_id: Id,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """One trajectory with all its ended steps."""
    client = AdminClient(gateway, key)
    params: dict[str, Any] = {"tenant": tenant, "steps_limit": 2000}
    detail = client.get(f"/trajectories/{path_of(trajectory_id)}", params)
    while (after := detail["steps"]["next_after"]) is not None:
        following = client.get(f"/trajectories/{path_of(trajectory_id)}", {**params, "steps_after": after})
        detail["steps"]["items"] += following["steps"]["items"]
        detail["steps"]["next_after"] = following["steps"]["next_after"]
    if as_json:
        print_json(detail)
        return
    one = detail["trajectory"]
    cached = share(one["cached_tokens"], one["prompt_tokens"])
    remaining = one["predicted_remaining"]
    print_facts(
        (
            ("trajectory", one["trajectory_id"]),
            ("phase", one["phase"]),
            ("group", one["group_id"]),
            ("sample", one["sample"]),
            ("parent", one["parent_id"]),
            ("source", one["source"]),
            ("model", one["model"]),
            ("worker", one["worker"]),
            ("steps", one["steps"]),
            ("requests", _requests(one["outcomes"], one["live_steps"])),
            ("segments", one["segments"] if one["segments"] > 1 else None),
            (
                "tokens",
                f"{one['prompt_tokens']} prompt ({cached or '0%'} cached), {one['output_tokens']} output",
            ),
            ("predicted", f"{remaining:.0f} tokens remaining" if remaining is not None else None),
            ("seen", f"{ago(one['first_seen'])} to {ago(one['last_seen'])} ago"),
            ("tenant", one["tenant"]),
        )
    )
    if detail["steps"]["items"]:
        print()
        print_table(
            (
                "#step",
                "outcome",
                "#prompt",
                "#cached",
                "#output",
                "#seconds",
                "#gap",
                "worker",
                "finish",
                "tools",
            ),
            (
                (
                    step["step"],
                    step["outcome"],
                    step["prompt_tokens"],
                    share(step["cached_tokens"], step["prompt_tokens"]),
                    step["output_tokens"],
                    f"{step['ended_at'] - step['arrived_at']:.2f}",
                    f"{step['gap_before_s']:.2f}" if step["gap_before_s"] is not None else None,
                    step["worker"],
                    step["finish_reason"],
                    " ".join(step["tool_names"]),
                )
                for step in detail["steps"]["items"]
            ),
        )


def _requests(outcomes: dict[str, int], live: int) -> str:
    """A step that its client sends again is another request, with an end of its own."""
    counts = {**outcomes, "live": live}
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{sum(counts.values())} ({found})" if found else "0"


@app.command("finish")
def finish_trajectory(
    trajectory_id: Id,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Say that no further step comes, so that what is held for it is let go."""
    answer = AdminClient(gateway, key).post(
        f"/trajectories/{path_of(trajectory_id)}/finish", params={"tenant": tenant}
    )
    if as_json:
        print_json(answer)
    elif answer["live_steps"]:
        print(f"{trajectory_id} ends with its {answer['live_steps']} live steps")
    else:
        print(f"{trajectory_id} is finished")
