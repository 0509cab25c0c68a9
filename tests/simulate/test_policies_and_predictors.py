"""The words of the command line: policies with changes, kinds of predictions."""

import json

import heddle_core
import pytest
from heddle_planner.simulate.policies import POLICIES, PolicyError, parse_policies
from heddle_planner.simulate.predictors import PredictionError, parse_prediction
from heddle_planner.simulate.replanning import Replan


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_one_that_the_core_takes(name: str) -> None:
    [row] = parse_policies(name)
    core = heddle_core.Core(json.dumps(row.core_policy))
    assert json.loads(core.policy_json()).items() >= row.core_policy.items()


def test_heddle_is_the_cores_default_policy() -> None:
    assert POLICIES["heddle"].core_policy == {}


def test_a_policy_can_be_changed_field_by_field() -> None:
    rows = parse_policies("verl, heddle;order=fcfs;move_margin=2.5;backlog=3")
    assert [row.name for row in rows] == ["verl", "heddle;order=fcfs;move_margin=2.5;backlog=3"]
    assert rows[1].core_policy == {"order": "fcfs", "move_margin": 2.5, "backlog": 3}
    assert rows[1].predicts
    assert not rows[1].baseline


def test_plans_on_the_way_are_a_setting_of_a_policy_and_not_of_the_core() -> None:
    [row] = parse_policies("heddle;replan_s=120;order=fcfs;replan_latency_s=0.5")
    assert row.core_policy == {"order": "fcfs"}
    assert row.replan == Replan(period_s=120.0, latency_s=0.5)
    [plain] = parse_policies("heddle")
    assert plain.replan is None


@pytest.mark.parametrize("setting", ["replan_s=0", "replan_s=often", "replan_s=true", "replan_latency_s=1"])
def test_plans_on_the_way_that_cannot_be_name_their_setting(setting: str) -> None:
    with pytest.raises(PolicyError, match=setting.split("=")[0]):
        parse_policies(f"heddle;{setting}")


@pytest.mark.parametrize("text", ["", "verl,verl", "virl", "verl;order", "verl;=3"])
def test_policies_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policies(text)


def test_predictions_are_read_with_their_noise() -> None:
    assert parse_prediction("oracle") == {"kind": "oracle"}
    assert parse_prediction("calibrated:0.8:0.2") == {"kind": "calibrated", "first": 0.8, "least": 0.2}
    assert parse_prediction("calibrated:0.3") == {"kind": "calibrated", "first": 0.3, "least": 0.3}
    assert parse_prediction("biased:2")["factor"] == 2.0


@pytest.mark.parametrize("text", ["perfect", "oracle:1", "calibrated:x", "biased", "calibrated:1:2:3"])
def test_predictions_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(PredictionError):
        parse_prediction(text)
