"""`heddle workers`: list, add and drain the workers of a running gateway."""

from typing import Annotated, Any, Literal

import typer

from heddle_cli.admin_client import DEFAULT_GATEWAY, AdminClient, AsJson, Gateway, Key
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.terminal import print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, add and drain workers.")

COLUMNS = (
    "#id",
    "url",
    "state",
    "kind",
    "#degree",
    "#slots",
    "#running",
    "#waiting",
    "#kv",
    "models",
    "note",
)


def row_of(worker: dict[str, Any]) -> tuple[Any, ...]:
    capacity = worker["kv_tokens"]
    used = worker["kv_used"]
    kv = f"{100 * used / capacity:.0f}% of {capacity}" if capacity and used is not None else capacity or None
    return (
        worker["id"],
        worker["url"],
        worker["state"],
        worker["kind"],
        worker["degree"],
        worker["slots"],
        worker["running"],
        worker["waiting"],
        kv,
        " ".join(worker["models"]),
        worker["last_error"] or ("emulated" if worker["emulated"] else ""),
    )


@app.command("ls")
def list_workers(gateway: Gateway = DEFAULT_GATEWAY, key: Key = None, as_json: AsJson = False) -> None:
    """All workers with their state and load."""
    answer = AdminClient(gateway, key).get("/workers")
    if as_json:
        print_json(answer)
    else:
        print_table(COLUMNS, (row_of(worker) for worker in answer["items"]))


@app.command("add")
def add_workers(
    urls: Annotated[list[str], typer.Argument(help="URLs of running servers.", show_default=False)],
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    degree: Annotated[int | None, typer.Option(min=1, help="MP degree, where asking does not tell.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Requests that run at once.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=0, help="KV pool in tokens.")] = None,
    model: Annotated[str | None, typer.Option(help="The name to know its model by.")] = None,
    kind: Annotated[
        Literal["sglang", "vllm", "llamacpp", "openai"] | None, typer.Option(help="Kind of server.")
    ] = None,
    priority: Annotated[
        Literal["higher", "lower", "none"] | None, typer.Option(help="Priority number served first.")
    ] = None,
    worker_key: Annotated[
        str | None, typer.Option(help="API key the gateway sends to these workers.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add servers; one that is not reachable yet is taken up when it comes."""
    client = AdminClient(gateway, key)
    said = {
        "degree": degree,
        "slots": slots,
        "kv_tokens": kv_tokens,
        "model": model,
        "kind": kind,
        "priority": priority,
        "api_key": worker_key,
    }
    known = {name: value for name, value in said.items() if value is not None}
    added = [client.post("/workers", {"url": url, **known}) for url in urls]
    if as_json:
        print_json({"items": added})
    else:
        print_table(COLUMNS, (row_of(worker) for worker in added))


@app.command("drain")
def drain_workers(
    workers: Annotated[list[str], typer.Argument(help="Ids, names or URLs.", show_default=False)],
    gateway: Gateway = DEFAULT_GATEWAY,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give workers no new steps and remove them when their running ones have ended."""
    client = AdminClient(gateway, key)
    known = client.get("/workers")["items"]
    # All are looked up before the first is drained.
    ids = [int(worker_named(worker, known)["id"]) for worker in workers]
    drained = [client.delete(f"/workers/{worker_id}") for worker_id in ids]
    if as_json:
        print_json({"items": drained})
    else:
        print_table(COLUMNS, (row_of(worker) for worker in drained))


def worker_named(named: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """By id, name or URL. Raises CommandFailed."""
    for worker in known:
        if named in (str(worker["id"]), worker["url"], worker["name"]) or named.rstrip("/") == worker["url"]:
            return worker
    raise CommandFailed(Exit.FAILED, f"no worker {named}; see `heddle workers ls`")
