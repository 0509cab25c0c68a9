"""Trains the boosted predictor on each recorded set, scores it by task folds, and times a batch of 256.

``python benchmarks/bench_predictor.py NAME.jsonl.gz...``; CPU time of one thread: company does not count.
"""

import sys
import time
from pathlib import Path

import numpy as np
from heddle_planner.predictor import models
from heddle_planner.predictor.cli import table
from heddle_planner.predictor.evaluate import evaluate, report
from heddle_planner.predictor.records import is_text_file, load_set

BATCH = 256
TURNS = 300


def main(paths: list[Path]) -> None:
    for path in paths:
        recorded = load_set(path)
        began = time.process_time()
        trained = models.train("boosting", [recorded])
        fitted = time.process_time() - began
        print(table(f"{recorded.name} (task folds)", report(evaluate(trained, recorded))))
        moments = [example.features for example in models.examples_of([recorded])]
        draw = np.random.default_rng(0)
        seconds = []
        for _ in range(TURNS):
            batch = [moments[row] for row in draw.integers(0, len(moments), BATCH).tolist()]
            began_batch = time.thread_time()
            trained.predictor.predict(batch)
            seconds.append(time.thread_time() - began_batch)
        middle, late = np.quantile(seconds, [0.5, 0.99]) * 1e3
        print(f"  fit {fitted:.1f} s; a batch of {BATCH}: {middle:.2f} ms, p99 {late:.2f} ms (CPU time)\n")


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:] if not is_text_file(Path(name))]
    if not given:
        sys.exit('name recorded sets: make bench-predictor DATA="NAME.jsonl.gz..."')
    main(given)
