"""`heddle rollouts`: announce a batch of trajectories to a running gateway, and watch it run."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_contracts.rollouts import RolloutPrompt
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from heddle_cli.admin_client import (
    DEFAULT_GATEWAY,
    PLAN_TIMEOUT_S,
    AdminClient,
    AsJson,
    Gateway,
    Key,
    path_of,
)
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.given_numbers import from_json, lengths_of, lines_of
from heddle_cli.terminal import ago, print_facts, print_json, print_table

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Announce batches of trajectories, and watch them run."
)

POLL_S: Final = 1.0
SHOWN: Final = 8
"""Ids that are shown of a new batch; --json has all."""

Id = Annotated[
    str | None, typer.Argument(help="Id of a rollout; the newest if not given.", show_default=False)
]


@app.command("create")
def create_rollout(
    lengths: Annotated[
        Path | None, typer.Option(help="Expected output tokens of each prompt, one number a line.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines {id?, tokens?, length?}, one a prompt.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="So many prompts of which nothing is known.")
    ] = None,
    group_size: Annotated[int, typer.Option(min=1, help="Samples of each prompt.")] = 1,
    name: Annotated[str | None, typer.Option(help="Name for people.")] = None,
    policy_version: Annotated[str | None, typer.Option(help="Of the model that is trained.")] = None,
    model: Annotated[str | None, typer.Option(help="Model that serves it.")] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="Do not plan for it now.")] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Announce a batch; prints the ids that its agents have to use."""
    if sum(one is not None for one in (lengths, prompts, count)) != 1:
        raise typer.BadParameter("give one of --lengths, --prompts and --count")
    asked: dict[str, Any] = {"group_size": group_size, "plan": not no_plan}
    if lengths is not None:
        asked["lengths"] = lengths_of(lengths)
    elif prompts is not None:
        asked["prompts"] = [_prompt(line, f"{prompts}: line {number}") for number, line in lines_of(prompts)]
        if not asked["prompts"]:
            raise CommandFailed(Exit.USAGE, f"{prompts}: there is no prompt in it")
    else:
        asked["prompts"] = [{}] * (count or 0)
    named = {"name": name, "policy_version": policy_version, "model": model}
    asked |= {key: value for key, value in named.items() if value is not None}
    created = AdminClient(gateway, key).post(
        "/rollouts", asked, timeout_s=PLAN_TIMEOUT_S, look="heddle rollouts ls"
    )
    if as_json:
        print_json(created)
        return
    rollout, members = created["rollout"], created["trajectories"]
    print_facts(
        (
            ("rollout", rollout["id"]),
            ("trajectories", rollout["trajectories"]),
            ("plan", rollout["plan_version"] or "none"),
        )
    )
    print()
    print_table(
        ("trajectory", "group", "#sample", "#predicted"),
        (
            (one["trajectory_id"], one["group_id"], one["sample"], f"{one['predicted']:.0f}")
            for one in members[:SHOWN]
        ),
    )
    if len(members) > SHOWN:
        print(f"... {len(members) - SHOWN} more; --json has all")
    print("\nAgents send X-Heddle-Trajectory-Id, or have /t/ID before /v1 in their base_url.")


@app.command("ls")
def list_rollouts(gateway: Gateway = DEFAULT_GATEWAY, key: Key = None, as_json: AsJson = False) -> None:
    """Newest first."""
    found = AdminClient(gateway, key).get("/rollouts")
    if as_json:
        print_json(found)
        return
    print_table(
        ("rollout", "name", "state", "#trajectories", "#finished", "#running", "#steps", "#created"),
        (
            (
                one["id"],
                one["name"],
                one["state"],
                one["trajectories"],
                one["finished"],
                one["running"],
                one["steps"],
                ago(one["created_at"]),
            )
            for one in found["items"]
        ),
    )


@app.command("show")
def show_rollout(
    rollout: Id = None, gateway: Gateway = DEFAULT_GATEWAY, key: Key = None, as_json: AsJson = False
) -> None:
    """How far a rollout is, when it is expected to end, and who will be last."""
    client = AdminClient(gateway, key)
    found = client.get(f"/rollouts/{_wanted(client, rollout)}")
    if as_json:
        print_json(found)
    else:
        _show(found)


@app.command("finish")
def finish_rollout(
    rollout: Annotated[str, typer.Argument(help="Id of the rollout.", show_default=False)],
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say that no further step of a rollout comes; what never came is forgotten."""
    found = AdminClient(gateway, key).post(f"/rollouts/{path_of(rollout)}/finish")
    if as_json:
        print_json(found)
    else:
        _show(found)


@app.command("watch")
def watch_rollout(
    rollout: Id = None, gateway: Gateway = DEFAULT_GATEWAY, key: Key = None, as_json: AsJson = False
) -> None:
    """A live progress bar with the expected end, until the rollout is over (--json: a line a second).

    It is over when somebody says so (`heddle rollouts finish ID`), or 10 s after the last answers if
    these call no tool; else when nothing has come for `dormant_after_ms` of the policy (60 s).
    """
    client = AdminClient(gateway, key)
    wanted = _wanted(client, rollout)
    bar = Progress(
        TextColumn("{task.fields[name]}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} trajectories, {task.fields[told]}"),
        console=Console(stderr=True),
        disable=as_json,
    )
    with bar:
        task: TaskID | None = None
        while True:
            found = client.get(f"/rollouts/{wanted}")
            if as_json:
                print(json.dumps(found), flush=True)
            elif task is None:
                task = bar.add_task(
                    "", total=found["trajectories"], name=found["name"] or found["id"], told=""
                )
            if task is not None:
                bar.update(task, completed=found["finished"], told=_told(found))
            if found["state"] == "finished":
                break
            time.sleep(POLL_S)
    if not as_json:
        _show(found)


def _wanted(client: AdminClient, rollout: str | None) -> str:
    if rollout is not None:
        return rollout
    known = client.get("/rollouts")["items"]
    if not known:
        raise CommandFailed(Exit.FAILED, "there is no rollout; announce one with `heddle rollouts create`")
    return str(known[0]["id"])


def _told(rollout: dict[str, Any]) -> str:
    """Running and waiting ones, and the expected end."""
    parts = [f"{rollout['running']} running", f"{rollout['waiting']} to come"]
    if rollout["state"] == "running" and rollout["answered"]:
        parts.append(f"{rollout['answered']} have answered without a tool call")
    if rollout["state"] == "running" and rollout["expected_end_at"] is not None:
        left = max(0.0, rollout["expected_end_at"] - time.time())
        ends = time.strftime("%H:%M:%S", time.localtime(rollout["expected_end_at"]))
        parts.append(f"expected to end in {left:.0f} s, at {ends}")
    return ", ".join(parts)


def _state(rollout: dict[str, Any]) -> str:
    """And what tells that it has finished, where nobody has said so of all."""
    if rollout["state"] != "finished":
        return str(rollout["state"])
    told = (
        (rollout["answered"], "answered without a tool call"),
        (rollout["quiet"], "gone quiet"),
    )
    parts = [f"{count} have {what}" for count, what in told if count]
    return f"finished: {', '.join(parts)}" if parts else "finished"


def _show(rollout: dict[str, Any]) -> None:
    makespan = rollout["makespan_so_far_s"]
    print_facts(
        (
            ("rollout", rollout["id"]),
            ("name", rollout["name"]),
            ("policy", rollout["policy_version"]),
            ("state", _state(rollout)),
            (
                "trajectories",
                f"{rollout['trajectories']}: {rollout['finished']} finished, {rollout['running']} running,"
                f" {rollout['waiting']} to come",
            ),
            ("steps", rollout["steps"]),
            ("tokens", f"{rollout['output_tokens']}, {rollout['predicted_remaining']:.0f} expected to come"),
            ("makespan", f"{makespan:.1f} s" if makespan is not None else None),
            ("", _told(rollout) if rollout["state"] == "running" else None),
            ("plan", rollout["plan_version"]),
        )
    )
    if rollout["stragglers"]:
        print()
        print_table(
            ("straggler", "phase", "#steps", "#tokens to come", "worker"),
            (
                (
                    one["trajectory_id"],
                    one["phase"],
                    one["steps"],
                    f"{one['predicted_remaining']:.0f}",
                    one["worker"],
                )
                for one in rollout["stragglers"]
            ),
        )


def _prompt(line: str, at: str) -> dict[str, Any]:
    try:
        prompt = RolloutPrompt.model_validate(from_json(line))
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "the line"
        raise CommandFailed(Exit.USAGE, f"{at}: {field}: {fault['msg']}") from error
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"{at}: {line[:60]!r} is not JSON: {error}") from error
    return prompt.model_dump(exclude_unset=True)
