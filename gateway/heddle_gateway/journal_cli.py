"""``heddle journal``: reads a journal of the decision core, and decides all of it once more."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heddle_contracts.steps import Outcome
from heddle_core import replay

app = typer.Typer(add_completion=False)

MICROSECONDS: Final = 1e6


@app.command()
def journal(
    file: Annotated[Path, typer.Argument(help="What `journal_path` named.", show_default=False)],
    policy: Annotated[
        str | None, typer.Option(help="JSON of a policy to decide under instead of the recorded one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a journal: what came, what was decided, and a digest that equal decisions share."""
    try:
        recorded = file.read_bytes()
    except OSError as error:
        raise _failed(f"{file}: {error.strerror}") from error
    whole = recorded[: recorded.rfind(b"\n") + 1]
    try:
        found = replay(whole, policy)
        kinds, seconds = _events_of(whole)
    except ValueError as error:
        raise _failed(f"{file}: {error}") from error
    torn = len(recorded) > len(whole)
    if as_json:
        typer.echo(json.dumps({**found, "kinds": kinds, "seconds": seconds, "torn": torn}))
        return
    stats = found["stats"]
    ended = {outcome.value: stats[f"steps_{outcome.value}_total"] for outcome in Outcome}
    told = (
        ("events", f"{sum(kinds.values())} in {seconds:.1f} s: {_listed(kinds)}"),
        ("decisions", f"{found['actions']}: {stats['dispatches_total']} dispatches"),
        ("steps", f"{stats['steps_arrived_total']} arrived; ended: {_listed(ended) or 'none'}"),
        ("live at end", f"{stats['steps_live']} steps, {stats['trajectories']} trajectories"),
        ("digest", found["digest"]),
    )
    for name, value in told:
        typer.echo(f"{name:<11}  {value}")
    if torn:
        typer.echo("The last line is not whole, as a killed gateway leaves it; it is left out.", err=True)


def _events_of(whole: bytes) -> tuple[dict[str, int], float]:
    """How many there are of each kind, most first, and the seconds between the first and the last."""
    kinds: Counter[str] = Counter()
    times: list[int] = []
    for line in whole.splitlines()[1:]:
        entry: dict[str, Any] = json.loads(line)
        if "event" in entry:
            event = entry["event"]
            kinds[event if isinstance(event, str) else next(iter(event))] += 1
            times.append(entry["now"])
    return dict(kinds.most_common()), (times[-1] - times[0]) / MICROSECONDS if times else 0.0


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _failed(said: str) -> typer.Exit:
    typer.echo(f"heddle journal: {said}", err=True)
    return typer.Exit(2)
