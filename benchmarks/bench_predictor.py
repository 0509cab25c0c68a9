"""What the boosted predictor reaches on recorded sets: all that docs/predictor.md says of it.

``python benchmarks/bench_predictor.py NAME.jsonl.gz...`` prints, for each set, scores by task folds beside
the baselines, and by how much they lead, with intervals; the same of a model that was trained on the other
sets; the makespan of a simulated rollout with replayed predictions beside the oracle's; and the time of a
batch, as CPU time of one thread and by the clock.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from heddle_planner.predictor import models
from heddle_planner.predictor.bootstrap import leads
from heddle_planner.predictor.cli import table
from heddle_planner.predictor.evaluate import Held, evaluate, report
from heddle_planner.predictor.features import Progress
from heddle_planner.predictor.records import RecordedSet, is_text_file, load_set
from heddle_planner.simulate.cli import app as simulate_app
from typer.testing import CliRunner

BATCH = 256
TURNS = 300
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
    """Of predictions alone, and with the features made first, as a step's end has it."""
    draw = np.random.default_rng(0)
    running = []
    for place in draw.integers(0, len(recorded.trajectories), BATCH).tolist():
        trajectory = recorded.trajectories[place]
        progress = Progress(trajectory.origin)
        for step in trajectory.steps[: int(draw.integers(0, min(len(trajectory.steps), MOST_STEPS)))]:
            progress.observe(step)
        running.append(progress)
    moments = [example.features for example in models.examples_of([recorded])]

    def drawn() -> None:
        batch = [moments[row] for row in draw.integers(0, len(moments), BATCH).tolist()]
        trained.predictor.predict(batch)

    def made() -> None:
        trained.predictor.predict([progress.features() for progress in running])

    lines = []
    for title, work in (("predictions", drawn), ("features and predictions", made)):
        seconds = []
        for _ in range(TURNS):
            began, on_clock = time.thread_time(), time.perf_counter()
            work()
            seconds.append((time.thread_time() - began, time.perf_counter() - on_clock))
        (cpu, clock), (late_cpu, late_clock) = np.quantile(seconds, [0.5, 0.99], axis=0) * 1e3
        lines.append(
            f"    {title}: {cpu:.2f} and {late_cpu:.2f} ms of CPU time,"
            f" {clock:.2f} and {late_clock:.2f} ms on the clock\n"
        )
    return "".join(lines)


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
