"""Agents with a law to be found: a task has a difficulty, and an agent's outputs show it as it goes on."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_planner.predictor.examples import make_examples
from heddle_planner.predictor.protocol import Example
from heddle_planner.predictor.records import RecordedSet, load_set

Line = dict[str, Any]


def a_line(task: str, sample: int, outputs: Sequence[int], **more: Any) -> Line:
    """One trajectory of the recorded format."""
    steps = [
        {
            "input_new_tokens": 40 if index else 0,
            "output_tokens": output,
            "tool": "bash" if index % 3 else "read_file",
            "tool_seconds": 1.5,
            "tool_error": index % 5 == 4,
            "llm_seconds": output / 50,
            "text": None,
            "obs_text": None,
        }
        for index, output in enumerate(outputs)
    ]
    return {
        "id": f"{task}/{sample}",
        "task_id": task,
        "domain": "coding",
        "sample": sample,
        "model": "m",
        "prompt_tokens0": 500,
        "steps": steps,
        **more,
    }


def lines_of(
    tasks: int, samples: int, seed: int = 0, *, cut: float = 0.0, prefix: str = "task"
) -> list[Line]:
    """Harder tasks have longer outputs and more of them. ``cut``: the share that was stopped half-way."""
    draw = random.Random(seed)
    found = []
    for task in range(tasks):
        hardness = draw.gauss(0.0, 0.7)
        for sample in range(samples):
            size = 60 * 2.718 ** (hardness + draw.gauss(0, 0.15))
            count = max(3, round(8 * 2.718 ** (hardness + draw.gauss(0, 0.2))))
            outputs = [max(1, round(size * 2.718 ** draw.gauss(0, 0.3))) for _ in range(count)]
            line = a_line(f"{prefix}-{task}", sample, outputs)
            if draw.random() < cut:
                line["steps"] = line["steps"][: max(1, count // 2)]
                line["finished"] = False
            found.append(line)
    return found


def write(path: Path, lines: Sequence[object]) -> Path:
    """As JSON lines; gzipped if the name says so. Strings are written as they are."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def line() -> Callable[..., Line]:
    return a_line


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes lines into a file of that name."""

    def make(name: str, lines: Sequence[object]) -> Path:
        return write(tmp_path / name, lines)

    return make


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """A file of so many tasks and samples."""

    def make(name: str, tasks: int, samples: int, seed: int = 0, **more: Any) -> Path:
        return write(tmp_path / name, lines_of(tasks, samples, seed, **more))

    return make


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> RecordedSet:
    """40 tasks of 3 samples."""
    return load_set(write(tmp_path_factory.mktemp("agents") / "agents.jsonl", lines_of(40, 3)))


@pytest.fixture(scope="session")
def examples(agents: RecordedSet) -> list[Example]:
    return make_examples(agents.trajectories, agents.tasks)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """60 other tasks of the same law, one sample each."""
    path = write(
        tmp_path_factory.mktemp("strangers") / "strangers.jsonl", lines_of(60, 1, seed=9, prefix="other")
    )
    recorded = load_set(path)
    return make_examples(recorded.trajectories, recorded.tasks)
