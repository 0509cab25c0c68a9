"""How near its lower bound a rollout gets when everything is known beforehand: a search with hindsight.

``python benchmarks/bench_hindsight.py NAME.jsonl.gz --gpus 8`` draws the rollout of `heddle compare` and
looks for the settings under which this very draw ends earliest: how the GPUs are cut, slots of each degree,
the share of the first worker, which moves are made, how long steps are gathered. The core serves the longest
first and is told the truth, once of lengths in tokens (an oracle in `heddle compare`'s sense) and once of
the tool times to come as well. What it finds can be reached by a schedule, so no bound is above it; how much
lower another could be, it does not say. Deterministic by ``--seed``.
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heddle_core import SimWorkload, simulate
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.fleet import most_context, single_degree, truth_of
from heddle_planner.simulate.grid import fitting_load
from heddle_planner.simulate.planning import Cluster
from heddle_planner.simulate.scripts import Script, to_native
from heddle_planner.simulate.sources import Source

PACES = (0.03, 0.02, 0.014, 0.01, 0.007, 0.004)
"""Seconds a token by which tool times become tokens in a rank."""
SLOTS = (24, 32, 48, 64, 96, 128, 192, 256, 384)
FIRST = 6
"""Random settings of each cut before the best are changed a little at a time."""


@dataclass(frozen=True)
class Setting:
    """One way to run."""

    cut: tuple[int, ...]
    slots: Mapping[int, int]
    share: float | None
    """Of the trajectories, the longest, planned for the first worker; None without a plan."""
    gather: float
    migration: str
    pace: float


def cuts(gpus: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All workers of these degrees that take all GPUs together, largest first."""
    if gpus == 0:
        yield ()
    for place, degree in enumerate(degrees):
        if degree <= gpus:
            yield from ((degree, *rest) for rest in cuts(gpus - degree, degrees[place:]))


def drawn(draw: random.Random, cut: tuple[int, ...], degrees: Sequence[int]) -> Setting:
    return Setting(
        cut=cut,
        slots={degree: draw.choice(SLOTS) for degree in degrees},
        share=draw.choice((None, None, 0.03, 0.08, 0.2, 0.4)),
        gather=draw.choice((0.5, 1.0, 2.0, 4.0)),
        migration=draw.choice(("when_worth_it", "on_rank_change", "never")),
        pace=draw.choice(PACES),
    )


def changed(draw: random.Random, setting: Setting, degrees: Sequence[int]) -> Setting:
    other = drawn(draw, setting.cut, degrees)
    field = draw.choice(("slots", "slots", "slots", "share", "gather", "migration", "pace"))
    if field == "slots":
        degree = draw.choice(setting.cut)
        slots = max(8, int(setting.slots[degree] * draw.choice((0.7, 0.8, 0.9, 1.1, 1.25, 1.5))))
        return replace(setting, slots={**setting.slots, degree: slots})
    if field == "share" and setting.share is not None and draw.random() < 0.7:
        return replace(setting, share=min(0.9, setting.share * draw.choice((0.7, 0.85, 1.2, 1.5))))
    return replace(setting, **{field: getattr(other, field)})


def ranked(scripts: Sequence[Script], pace: float) -> SimWorkload:
    """The scripts with what remains of each before every step, tool times counted as tokens."""

    def foretold(script: Script) -> Script:
        tokens, tools, said = float(script.output), script.tool_seconds, []
        for turn in script.turns:
            said.append((max(1.0, tokens + tools / pace), 0.0))
            tokens, tools = tokens - turn.output, max(0.0, tools - turn.tool_seconds)
        return replace(script, forecasts=tuple(said))

    return to_native([foretold(script) for script in scripts])


def seconds(
    setting: Setting, native: SimWorkload, truth: Mapping[str, Any], kind: str, count: int, seed: int
) -> float:
    plan = None
    if setting.share is not None and len(setting.cut) > 1:
        rest = setting.cut[1:]
        each = [setting.share, *((1 - setting.share) * degree / sum(rest) for degree in rest)]
        plan = Cluster(setting.cut, [max(1, round(count * share)) for share in each]).plan
    spec = {
        "truth": {degree: {**one, "slots": setting.slots[int(degree)]} for degree, one in truth.items()},
        "workers": list(setting.cut),
        "policy": {"gather_weight": setting.gather, "migration": setting.migration},
        "plan": plan,
        "prediction": {"kind": kind},
        "seed": seed,
    }
    report, _ = simulate(native, json.dumps(spec))
    return float(json.loads(report)["makespan_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=400, help="settings tried for each kind of hindsight")
    given = parser.parse_args()
    profile = load_profile("qwen3-8b-h100")
    degrees = sorted((degree for degree in profile.degrees if degree <= given.gpus), reverse=True)
    truth = truth_of(profile, degrees=degrees, kv_scale=1.0, slots=None)
    context, source = min(131_072, most_context(truth)), Source(str(given.records))
    load = fitting_load(source, truth, given.gpus, context, given.seed)
    scripts = source.draw_within(context, trajectories=load, seed=given.seed).scripts
    plain = to_native(scripts)
    of_bound = {"truth": truth, "workers": single_degree(given.gpus, degrees[0])}
    bound = max(plain.lower_bound(json.dumps(of_bound)))
    print(f"{given.records.name}, {load} trajectories, {given.gpus} GPUs, lower bound {bound:.1f} s")
    by_pace = {pace: ranked(scripts, pace) for pace in PACES}
    for known, kind in (("lengths", "oracle"), ("lengths and tool times", "recorded")):
        draw = random.Random(given.seed)
        ways = list(cuts(given.gpus, degrees))
        settings = [drawn(draw, cut, degrees) for cut in ways for _ in range(FIRST)]
        best: dict[tuple[int, ...], tuple[float, Setting]] = {}
        for number in range(given.runs):
            if number < len(settings):
                setting = settings[number]
            else:
                # Mostly the best cuts, now and then another.
                order = sorted(best.values(), key=lambda found: found[0])
                _, setting = order[min(len(order) - 1, int(draw.expovariate(0.5)))]
                for _ in range(draw.choice((1, 1, 2))):
                    setting = changed(draw, setting, degrees)
            native = plain if kind == "oracle" else by_pace[setting.pace]
            took = seconds(setting, native, truth, kind, load, given.seed)
            if setting.cut not in best or took <= best[setting.cut][0]:
                best[setting.cut] = (took, setting)
        print(f"{known} known, best of {given.runs} for each cut:")
        for took, setting in sorted(best.values(), key=lambda found: found[0]):
            slots = {degree: setting.slots[degree] for degree in sorted(set(setting.cut), reverse=True)}
            print(
                f"  {took:6.1f} s, {took / bound:.2f} x bound  {'+'.join(map(str, setting.cut)):16}"
                f" slots {slots} share {setting.share} gather {setting.gather} {setting.migration}"
                f" pace {setting.pace}"
            )


if __name__ == "__main__":
    main()
