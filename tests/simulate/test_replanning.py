"""Plans made on the way through a simulated rollout: asked in time, put in force late, each time the same."""

import json
from collections.abc import Callable
from typing import Any

import heddle_core
import pytest
from heddle_planner.profiles import load_profile
from heddle_planner.simulate.comparison import Problem, compare
from heddle_planner.simulate.domains import DOMAINS, make_scripts
from heddle_planner.simulate.fleet import truth_of
from heddle_planner.simulate.policies import parse_policies
from heddle_planner.simulate.replanning import Planner, Replan
from heddle_planner.simulate.scripts import Script, to_native

PROFILE = load_profile("qwen3-8b-h100")
TRUTH = truth_of(PROFILE, degrees=[1, 2], kv_scale=1.0, slots=8)


def scripts(seed: int) -> list[Script]:
    return make_scripts(DOMAINS["search"], trajectories=64, group_size=8, scale_output=1.0, seed=seed)


def spec(**changes: object) -> str:
    return json.dumps(
        {
            "truth": TRUTH,
            "workers": [2, 1, 1],
            "prediction": {"kind": "calibrated", "first": 1.2, "least": 0.6},
            "replan": {"period_s": 10.0, "latency_s": 3.0},
            "journal": True,
            **changes,
        }
    )


class Asked:
    """Answers as a planner does, and remembers what it was asked."""

    def __init__(self, planner: Callable[[str], str | None]) -> None:
        self.planner = planner
        self.questions: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []

    def __call__(self, question: str) -> str | None:
        self.questions.append(json.loads(question))
        answer = self.planner(question)
        if answer is not None:
            self.answers.append(json.loads(answer))
        return answer


def orders(journal: bytes) -> list[tuple[float, str, dict[str, Any]]]:
    """Plans and policies that the core was given: seconds, kind, and what it was."""
    rows = [json.loads(line) for line in journal.splitlines()[1:]]
    events = [(row["now"] / 1e6, *next(iter(row["event"].items()))) for row in rows if "event" in row]
    return [event for event in events if event[1] in ("install_plan", "set_policy")]


def test_a_rounds_plan_is_put_in_force_when_its_answer_is_there_and_the_journal_replays() -> None:
    drawn = scripts(1)
    asked = Asked(Planner(drawn, scripts(2)))
    report, journal = heddle_core.simulate(to_native(drawn), spec(), asked)
    found = json.loads(report)
    assert len(asked.questions) > 3
    assert [question["at_s"] for question in asked.questions[:3]] == [10.0, 20.0, 30.0]
    first = asked.questions[0]
    assert len(first["active"]) > 2
    assert len(first["workers"]) == 3
    assert found["plans_on_the_way"] == len(asked.answers)
    assert found["digest"] == heddle_core.replay(journal)["digest"]
    again = heddle_core.simulate(to_native(drawn), spec(), Planner(drawn, scripts(2)))
    assert (report, journal) == again


def test_shares_hold_for_their_time_and_are_taken_back_where_a_plan_has_none() -> None:
    shares = {
        "placement": "by_rank",
        "partition": [{"worker": worker, "size": 20} for worker in (0, 1, 2)],
        "with_shares": True,
        "ttl_s": 8.0,
        "fallback": "sticky",
    }
    without = {**shares, "with_shares": False, "placement": "sticky", "ttl_s": 100.0}
    answers = iter([shares, None, without])

    def planner(question: str) -> str | None:
        answer = next(answers, None)
        return None if answer is None else json.dumps(answer)

    _, journal = heddle_core.simulate(to_native(scripts(1)), spec(), planner)
    told = [(at, kind, what.get("placement", what.get("ttl_ms"))) for at, kind, what in orders(journal)]
    assert told[:3] == [
        (13.0, "install_plan", 8000),
        (21.0, "set_policy", "sticky"),  # its time was over, and no other plan had come
        (33.0, "install_plan", 0),  # shares that the core has go by a plan that ends at once
    ]


def test_what_has_ended_and_how_wrong_its_forecasts_were_is_told_once() -> None:
    drawn = scripts(1)
    asked = Asked(Planner(drawn, scripts(2)))
    heddle_core.simulate(to_native(drawn), spec(), asked)
    ended = [trajectory for question in asked.questions for trajectory in question["ended"]]
    assert len(ended) == len(set(ended)) > 10
    errors = [pair for question in asked.questions for pair in question["errors"]]
    assert len(errors) == sum(len(drawn[trajectory].turns) for trajectory in ended)
    for trajectory in ended:
        assert any(was == drawn[trajectory].output for _, was in errors)


def test_an_operators_placement_is_not_overruled() -> None:
    drawn = scripts(1)
    asked = Asked(Planner(drawn, scripts(2)))
    heddle_core.simulate(to_native(drawn), spec(policy={"placement": "sticky"}), asked)
    assert asked.questions == []


def test_a_loss_of_a_worker_is_a_question_at_once() -> None:
    drawn = scripts(1)
    asked = Asked(Planner(drawn, scripts(2)))
    heddle_core.simulate(to_native(drawn), spec(losses=[{"worker": 1, "at_s": 4.0}]), asked)
    assert asked.questions[0]["at_s"] == 4.5
    assert [worker["id"] for worker in asked.questions[0]["workers"]] == [0, 2]


def test_a_planner_that_fails_ends_the_run_with_its_own_error() -> None:
    def broken(question: str) -> str | None:
        raise LookupError("no such prompt")

    with pytest.raises(LookupError, match="no such prompt"):
        heddle_core.simulate(to_native(scripts(1)), spec(), broken)
    with pytest.raises(ValueError, match="answer: unknown variant `nowhere`"):
        heddle_core.simulate(to_native(scripts(1)), spec(), lambda question: '{"placement": "nowhere"}')
    with pytest.raises(ValueError, match="replan: needs a planner"):
        heddle_core.simulate(to_native(scripts(1)), spec())
    with pytest.raises(ValueError, match=r"replan\.period_s"):
        heddle_core.simulate(to_native(scripts(1)), spec(replan={"period_s": 0}), broken)


def test_a_row_of_a_comparison_plans_on_the_way() -> None:
    problem = Problem(
        scripts=scripts(1),
        rehearsals=[scripts(2)],
        truth=TRUTH,
        profile=PROFILE,
        gpus=4,
        prediction={"kind": "calibrated", "first": 1.2, "least": 0.6},
        seed=0,
    )
    rows = parse_policies("heddle,heddle;replan_s=10")
    once, on_the_way = compare(problem, rows).outcomes
    assert once.report["plans_on_the_way"] == 0
    assert on_the_way.report["plans_on_the_way"] > 2
    assert once.workers == on_the_way.workers
    assert rows[1].replan == Replan(10.0)
