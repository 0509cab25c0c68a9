"""Records, workers and trajectories that the planner's tests are made of."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from heddle_contracts.planning import ActiveTrajectory, PlanWorker
from heddle_contracts.steps import Outcome, StepRecord
from heddle_planner.simulate.scripts import Script, Turn


def a_worker(number: int, degree: int, *, slots: int = 8, **more: Any) -> PlanWorker:
    """What an 8-billion-parameter model does on one GPU, split over the degree."""
    compute = degree**0.85
    return PlanWorker(
        id=number,
        name=f"worker-{number}",
        degree=degree,
        slots=slots,
        kv_tokens=more.pop("kv_tokens", 400_000 * degree),
        token_us=1_300 + 5_200 / degree,
        token_us_per_seq=32 / compute,
        token_us_per_context_token=0.06 / degree,
        prefill_tokens_per_s=28_000 * compute,
        **more,
    )


def an_active(number: int, remaining: float, **more: Any) -> ActiveTrajectory:
    return ActiveTrajectory(tenant="", trajectory_id=f"t{number}", remaining=remaining, **more)


def a_record(step: int, *, trajectory: str = "t", output: int = 100, **more: Any) -> StepRecord:
    """Step ``step`` of a trajectory whose context grows by its answers and 50 tokens of tool results."""
    fields: dict[str, Any] = {
        "trajectory_id": trajectory,
        "tenant": "",
        "source": "header",
        "dialect": "chat",
        "step": step,
        "outcome": Outcome.DONE,
        "tool_names": ("bash",),
        "prompt_tokens": 1_000 + step * (output + 50),
        "output_tokens": output,
        "arrived_at": 100.0 + 10 * step,
        "ended_at": 105.0 + 10 * step,
        "gap_before_s": 5.0 if step else None,
    }
    return StepRecord(**{**fields, **more})


@pytest.fixture
def past() -> Sequence[Script]:
    """Finished trajectories of 2 to 30 steps."""
    draw = random.Random(5)
    return [
        Script(
            prompt=draw.randint(500, 3_000),
            turns=tuple(
                Turn(
                    input=draw.randint(50, 400),
                    output=draw.randint(50, 500),
                    tool_seconds=draw.random(),
                )
                for _ in range(draw.randint(2, 30))
            ),
        )
        for _ in range(40)
    ]


@pytest.fixture
def fleet() -> Callable[..., list[PlanWorker]]:
    """``fleet(4, 2, 1)``: workers of these degrees, numbered from 1."""

    def make(*degrees: int, **more: Any) -> list[PlanWorker]:
        return [a_worker(number, degree, **more) for number, degree in enumerate(degrees, start=1)]

    return make


@pytest.fixture
def active() -> Callable[..., list[ActiveTrajectory]]:
    """``active(n)``: so many trajectories with a heavy tail of lengths."""

    def make(count: int, seed: int = 1, **more: Any) -> list[ActiveTrajectory]:
        draw = random.Random(seed)
        return [an_active(number, draw.lognormvariate(7.5, 1.0), **more) for number in range(count)]

    return make


@pytest.fixture
def record() -> Callable[..., StepRecord]:
    return a_record
