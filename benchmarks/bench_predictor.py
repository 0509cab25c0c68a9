"""What the boosted predictor reaches on recorded sets: all that docs/predictor.md says of it.

``python benchmarks/bench_predictor.py NAME.jsonl.gz...`` prints, for each set, scores by task folds beside
the baselines; scores of a model that was trained on the other sets; the makespan of a simulated rollout with
replayed predictions beside the oracle's; and the time of a batch, as CPU time of one thread.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from heddle_planner.predictor import models
from heddle_planner.predictor.cli import table
from heddle_planner.predictor.evaluate import Held, evaluate, report
from heddle_planner.predictor.records import RecordedSet, is_text_file, load_set
from heddle_planner.simulate.cli import app as simulate_app
from typer.testing import CliRunner

BATCH = 256
TURNS = 300
GPUS = 8
ROLLOUT = 256
KV_SCALES = (1.0, 0.25)


def main(paths: list[Path]) -> None:
    sets = [load_set(path) for path in paths]
    for recorded in sets:
        began = time.process_time()
        trained = models.train("boosting", [recorded])
        fitted = time.process_time() - began
        print(table(f"{recorded.name} (task folds)", report(evaluate(trained, recorded))))
        middle, late = batch_times(trained, recorded)
        print(f"  fit {fitted:.1f} s; a batch of {BATCH}: {middle:.2f} ms, p99 {late:.2f} ms (CPU time)\n")
        with tempfile.TemporaryDirectory() as folder:
            models.save(trained, Path(folder) / "model")
            print(makespans(recorded, Path(folder) / "model"), flush=True)
    if len(sets) > 1:
        for recorded in sets:
            strangers(recorded, [other for other in sets if other is not recorded])


def batch_times(trained: models.TrainedModel, recorded: RecordedSet) -> tuple[float, float]:
    """Milliseconds of a batch: median and 99th percentile."""
    moments = [example.features for example in models.examples_of([recorded])]
    draw = np.random.default_rng(0)
    seconds = []
    for _ in range(TURNS):
        batch = [moments[row] for row in draw.integers(0, len(moments), BATCH).tolist()]
        began = time.thread_time()
        trained.predictor.predict(batch)
        seconds.append(time.thread_time() - began)
    middle, late = np.quantile(seconds, [0.5, 0.99]) * 1e3
    return float(middle), float(late)


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
    print("  from the second step on:", "; ".join(f"{name} {line(one)}" for name, one in held.items()), "\n")


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
