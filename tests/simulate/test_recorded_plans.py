"""``heddle forecast`` with plans that came into force on the way: given once, at their time."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from heddle_planner.simulate.forecast_cli import RecordedPlans, app
from typer.testing import CliRunner

POLICY = {"order": "longest_first", "placement": "by_rank", "admission": "unlimited"}
COSTS = {
    "batches": [1, 2],
    "step_seconds": [0.01, 0.011],
    "context_token_s": 0.0,
    "prefill_fixed_s": 0.01,
    "prefill_token_s": 1e-5,
    "prefill_pair_s": 0.0,
}

LINK = {"tokens_per_s": 1e6, "setup_s": 0.0}


def plan(at_s: float, ttl_s: float, *sizes: int) -> dict[str, Any]:
    partition = [{"worker": worker, "size": size} for worker, size in enumerate(sizes)]
    return {"at_s": at_s, "ttl_s": ttl_s, "partition": partition}


def answers(planner: RecordedPlans, *moments: float) -> list[list[int] | None]:
    """Sizes of the shares said at each moment; None where nothing was said, [] where shares went."""
    found: list[list[int] | None] = []
    for at_s in moments:
        said = planner(json.dumps({"at_s": at_s}))
        answer = None if said is None else json.loads(said)
        shares = answer and [share["size"] for share in answer["partition"]]
        found.append(answer and (shares if answer["with_shares"] else []))
    return found


def test_each_plan_is_said_once_and_of_several_the_last() -> None:
    planner = RecordedPlans([plan(10, 60, 3, 1), plan(20, 60, 2, 2), plan(22, 0, 1, 3)], POLICY)
    assert answers(planner, 5, 11, 15, 30, 40) == [None, [3, 1], None, [], None]


def reports(tmp_path: Path, plans: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    draw = random.Random(3)
    trace, cluster = tmp_path / "trace.jsonl", tmp_path / "cluster.json"
    records = [
        {
            "id": f"{place}",
            "task_id": f"{place}",
            "prompt_tokens0": 50,
            "steps": [step_of(draw.randint(50, 900)) for _ in range(draw.choice((3, 6, 20)))],
        }
        for place in range(60)
    ]
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    slow = {"degree": 1, "slots": 8, "kv_tokens": 100_000, "costs": COSTS, "link": LINK}
    quick = {**slow, "degree": 4, "costs": {**COSTS, "step_seconds": [0.0025, 0.0026]}}
    told = {"planned": POLICY, "unplanned": POLICY}
    cluster.write_text(
        json.dumps({"workers": [quick, slow, slow], "policies": told, "plans": {"planned": plans}})
    )
    result = CliRunner().invoke(app, [str(trace), "--cluster", str(cluster), "--prediction", "oracle"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return found


def step_of(tokens: int) -> dict[str, Any]:
    return {"input_new_tokens": 0, "output_tokens": tokens, "tool": "bash", "tool_seconds": 1.0}


def test_shares_are_in_force_in_the_run_of_their_policy_alone(tmp_path: Path) -> None:
    found = reports(tmp_path, [plan(1.0, 1e6, 1, 29, 30)])
    assert found["planned"] != found["unplanned"]
    assert found["unplanned"] == reports(tmp_path, [])["planned"]


@pytest.mark.parametrize("field", ["at_s", "ttl_s", "partition"])
def test_a_plan_without_a_field_is_refused(tmp_path: Path, field: str) -> None:
    broken = plan(1.0, 60.0, 1, 1)
    del broken[field]
    trace, cluster = tmp_path / "trace.jsonl", tmp_path / "cluster.json"
    steps = [{"input_new_tokens": 0, "output_tokens": 400, "tool": "bash"}] * 3
    records = [{"id": name, "task_id": name, "prompt_tokens0": 50, "steps": steps} for name in ("a", "b")]
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    worker = {"degree": 1, "slots": 2, "kv_tokens": 100_000, "costs": COSTS}
    cluster.write_text(
        json.dumps({"workers": [worker] * 2, "policies": {"one": POLICY}, "plans": {"one": [broken]}})
    )
    result = CliRunner().invoke(app, [str(trace), "--cluster", str(cluster)])
    assert result.exit_code == 2
    assert field in result.stderr
