"""What is rehearsed: futures of live trajectories, drawn in the manner of those that are over."""

import random

import pytest
from heddle_contracts.planning import ActiveTrajectory
from heddle_planner.rehearsal import Stage, draw_scripts
from heddle_planner.simulate.scripts import Script, Turn

STAGE = Stage(truth={"1": {"kv_tokens": 10_000_000}}, workers=[1], policy={}, error=0.1, seed=1)
LIVE = [
    ActiveTrajectory(
        tenant="", trajectory_id=f"t{number}", remaining=20_000.0, sigma=0.1, context_tokens=1_000
    )
    for number in range(50)
]


def a_past(steps: int) -> Script:
    """So many steps of 200 tokens, with 10 s and 50 tokens of result between them."""
    turns = [Turn(50 if index else 0, 200, 10.0) for index in range(steps - 1)]
    return Script(prompt=1_000, turns=(*turns, Turn(50 if turns else 0, 200, 0.0)))


@pytest.mark.parametrize("steps", [2, 3, 12])
def test_a_future_longer_than_its_model_has_gaps_and_results_where_that_ended(steps: int) -> None:
    for script in draw_scripts(LIVE, [a_past(steps)] * 16, STAGE, random.Random(1)):
        assert len(script.turns) > 12
        assert {turn.tool_seconds for turn in script.turns[:-1]} == {10.0}
        assert {turn.input for turn in script.turns[1:]} == {50}


def test_a_model_of_one_step_goes_on_as_the_others_do() -> None:
    for script in draw_scripts(LIVE, [*[a_past(1)] * 15, a_past(3)], STAGE, random.Random(1)):
        assert {turn.tool_seconds for turn in script.turns[:-1]} == {10.0}
        assert {turn.input for turn in script.turns[1:]} == {50}


def test_where_no_tool_call_is_known_none_is_made_up() -> None:
    for script in draw_scripts(LIVE, [a_past(1)], STAGE, random.Random(1)):
        assert script.tool_seconds == 0.0
