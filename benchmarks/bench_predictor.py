"""What the boosted predictor reaches on recorded sets: all that docs/predictor.md says of it.

``python benchmarks/bench_predictor.py NAME.jsonl.gz...`` prints, for each set, scores by task folds beside
the baselines, and by how much they lead, with intervals; the same of a model that was trained on the other
sets; the makespan of a simulated rollout with replayed predictions beside the oracle's; and the time of a
batch, as CPU time of one thread and by the clock.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from heddle_contracts.predictions import Forecast, StepBatch, TrajectoryOver
from heddle_contracts.steps import Outcome, StepRecord
from heddle_planner.observed import Observed
from heddle_planner.planner_cli import collect_rarely
from heddle_planner.predictor import models
from heddle_planner.predictor.bootstrap import leads
from heddle_planner.predictor.cli import table
from heddle_planner.predictor.evaluate import Held, evaluate, report
from heddle_planner.predictor.features import Progress, StepFeatures
from heddle_planner.predictor.records import RecordedSet, is_text_file, load_set
from heddle_planner.simulate.cli import app as simulate_app
from typer.testing import CliRunner

BATCH = 256
TURNS = 300
WARM_UP = 40
"""Batches that the planner has taken before it is timed: siblings have finished by then."""
GPUS = 8
ROLLOUT = 256
KV_SCALES = (1.0, 0.25)
MOST_STEPS = 40
"""Of the running trajectories of a batch: the time of a batch does not depend on it."""
LEADS = {"after 1": (1, 1), "after 2": (2, 2), "from 2 on": (2, 1 << 30)}


def main(paths: list[Path]) -> None:
    sets = [load_set(path) for path in paths]
    for recorded in sets:
        began = time.process_time()
        trained = models.train("boosting", [recorded])
        fitted = time.process_time() - began
        held = evaluate(trained, recorded)
        print(table(f"{recorded.name} (task folds)", report(held)))
        print(led(held))
        print(f"  fit {fitted:.1f} s of CPU time; a batch of {BATCH}, median and p99:")
        print(batch_times(trained, recorded))
        with tempfile.TemporaryDirectory() as folder:
            models.save(trained, Path(folder) / "model")
            print(makespans(recorded, Path(folder) / "model"), flush=True)
    if len(sets) > 1:
        for recorded in sets:
            strangers(recorded, [other for other in sets if other is not recorded])


def led(held: dict[str, Held]) -> str:
    """By how much the model leads each baseline, with the 90 % interval over trajectories."""
    model, *baselines = held
    lines = []
    for other in baselines:
        for title, (first, last) in LEADS.items():
            steps = held[model].steps
            found = leads(held[model], held[other], (steps >= first) & (steps <= last))
            cells = [
                f"{name} {one.score:.3f} {one.ahead:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"
                for name, one in found.items()
            ]
            lines.append(f"  leads {other:<12}{title:>10}: {'; '.join(cells)}")
    return "\n".join(lines)


def batch_times(trained: models.TrainedModel, recorded: RecordedSet) -> str:
    """Of predictions alone; with the features made first, texts and all, and the forecasts after; and of a
    gateway's batch of ended steps, which has no texts, from its records to the planner's forecasts.
    """
    draw = np.random.default_rng(0)
    running = []
    for place in draw.integers(0, len(recorded.trajectories), BATCH).tolist():
        trajectory = recorded.trajectories[place]
        progress = Progress(trajectory.origin)
        for step in trajectory.steps[: int(draw.integers(0, min(len(trajectory.steps), MOST_STEPS)))]:
            progress.observe(step)
        running.append(progress)
    moments = [example.features for example in models.examples_of([recorded])]
    observed = Observed(trained.predictor)
    batches = batches_of(recorded)
    for batch in islice(batches, WARM_UP):
        observed.take(batch)
    collect_rarely()

    def drawn() -> list[StepFeatures]:
        return [moments[row] for row in draw.integers(0, len(moments), BATCH).tolist()]

    def made(running: list[Progress]) -> list[Forecast]:
        said = trained.predictor.predict([progress.features() for progress in running])
        return [
            Forecast(
                tenant="",
                trajectory_id=progress.origin.trajectory_id,
                step=progress.steps,
                mean=float(mean),
                sigma=float(sigma),
            )
            for progress, mean, sigma in zip(running, said.mean, said.sigma, strict=True)
        ]

    kinds: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
        ("predictions", drawn, trained.predictor.predict),
        ("features, predictions and forecasts", lambda: running, made),
        ("records to forecasts", lambda: next(batches), observed.take),
    )
    lines = []
    for title, prepare, work in kinds:
        seconds = []
        for _ in range(TURNS):
            given = prepare()
            began, on_clock = time.thread_time(), time.perf_counter()
            work(given)
            seconds.append((time.thread_time() - began, time.perf_counter() - on_clock))
        (cpu, clock), (late_cpu, late_clock) = np.quantile(seconds, [0.5, 0.99], axis=0) * 1e3
        lines.append(
            f"    {title}: {cpu:.2f} and {late_cpu:.2f} ms of CPU time,"
            f" {clock:.2f} and {late_clock:.2f} ms on the clock\n"
        )
    return "".join(lines) + f"    load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n"


def batches_of(recorded: RecordedSet) -> Iterator[StepBatch]:
    """What a gateway tells of `BATCH` agents that each end a step at a time; who is done begins another
    recorded trajectory, as a sample of the same group.
    """
    agents = [agent(recorded, number) for number in range(BATCH)]
    over: list[TrajectoryOver] = []
    while True:
        told = [next(one) for one in agents]
        ended = [one for one in told if isinstance(one, TrajectoryOver)]
        steps = [one if isinstance(one, StepRecord) else next(agents[at]) for at, one in enumerate(told)]
        yield StepBatch(steps=tuple(one for one in steps if isinstance(one, StepRecord)), over=tuple(over))
        over = ended


def agent(recorded: RecordedSet, number: int) -> Iterator[StepRecord | TrajectoryOver]:
    """Records of one trajectory after another, without end; `TrajectoryOver` after each."""
    for turn in count():
        place = (number + turn * BATCH) % len(recorded.trajectories)
        trajectory, now = recorded.trajectories[place], 0.0
        name, context = f"{number}/{turn}", trajectory.origin.prompt_tokens
        for index, step in enumerate(trajectory.steps):
            context += step.input_tokens if index else 0
            now += step.gap_before_s or 0.0
            yield StepRecord(
                trajectory_id=name,
                tenant=trajectory.origin.domain,
                group_id=recorded.tasks[place],
                model=trajectory.origin.model,
                source="header",
                dialect="chat",
                step=index,
                outcome=Outcome.DONE,
                tool_names=step.tools,
                prompt_tokens=context,
                output_tokens=step.output_tokens,
                arrived_at=now,
                ended_at=now + (step.seconds or 0.0),
                gap_before_s=step.gap_before_s if index else None,
            )
            context += step.output_tokens
            now += step.seconds or 0.0
        yield TrajectoryOver(tenant=trajectory.origin.domain, trajectory_id=name, finished=True, at=now)


def makespans(recorded: RecordedSet, model: Path) -> str:
    """Rollouts on a modelled cluster, told the truth, nothing, or what the model says (by task folds), where
    the KV fits and where it is oversubscribed.
    """
    lines = []
    for kv_scale in KV_SCALES:
        found = {}
        for told in ("oracle", f"recorded:{model}", "none"):
            out = model / "simulated.json"
            arguments = [
                "--workload",
                str(recorded.path),
                "--trajectories",
                str(ROLLOUT),
                "--gpus",
                str(GPUS),
            ]
            arguments += ["--policies", "heddle", "--prediction", told, "--kv-scale", str(kv_scale)]
            result = CliRunner().invoke(simulate_app, [*arguments, "--json", str(out)])
            if result.exit_code:
                return f"  rollout not simulated: {result.output.strip()}\n"
            policies: dict[str, dict[str, Any]] = json.loads(out.read_text())["policies"]
            found[told] = float(policies["heddle"]["makespan_s"])
        oracle, said, blind = found.values()
        lines.append(
            f"  rollout of {ROLLOUT} on {GPUS} GPUs, KV x{kv_scale:g}: oracle {oracle:.0f} s,"
            f" predictions {said:.0f} s ({said / oracle - 1:+.1%}),"
            f" none {blind:.0f} s ({blind / oracle - 1:+.1%})\n"
        )
    return "".join(lines)


def strangers(recorded: RecordedSet, others: list[RecordedSet]) -> None:
    """Scores on a set of a model that never saw it."""
    held = evaluate(models.train("boosting", others), recorded)
    print(table(f"{recorded.name} (trained on {', '.join(one.name for one in others)})", report(held)))
    print("  from the second step on:", "; ".join(f"{name} {line(one)}" for name, one in held.items()))
    print(led(held), "\n", flush=True)


def line(held: Held) -> str:
    scores = held.scores(held.steps >= 2)
    return ", ".join(
        f"{name} {scores[name]:.3f}"  # type: ignore[literal-required]
        for name in ("recall_top10", "pearson", "concordance", "mae", "coverage90")
    )


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:] if not is_text_file(Path(name))]
    if not given:
        sys.exit('name recorded sets: make bench-predictor DATA="NAME.jsonl.gz..."')
    main(given)
