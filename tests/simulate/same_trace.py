"""One trace for two programs: scripts, what workers truly do, and the tokens of each step.

The simulator gets numbers, an emulated worker gets tokens; both are made here from one seed.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle_shim.emulator.timing import StepCosts, TimingProfile
from heddle_shim.emulator.tokens import ID_BYTES


@dataclass(frozen=True)
class Case:
    """A cluster and its load."""

    degrees: Sequence[int]
    slots: int
    kv_tokens: int
    policy: dict[str, Any]
    trajectories: int
    most_output: int = 4096
    chunk: int = 8192
    link: tuple[float, float] | None = None
    """KV tokens a second between workers, and seconds of a transfer of none."""
    shares: Sequence[int] = ()
    """A plan's sizes by worker."""


def scripts_of(case: Case, seed: int) -> list[Any]:
    """Groups of four that share a prompt; (prompt, group, start, steps)."""
    draw = random.Random(seed)
    scripts = []
    for index in range(case.trajectories):
        group = index // 4
        prompt = 200 + 370 * (group % 5)
        steps = [
            (
                0 if step == 0 else draw.randrange(1, 400),
                draw.randrange(1, 400),
                draw.choice([0.0, 0.05, draw.uniform(0.0, 2.0)]),
            )
            for step in range(draw.randrange(1, 7))
        ]
        scripts.append((prompt, group, round(draw.uniform(0.0, 3.0), 3), steps))
    return scripts


def spec_of(case: Case, seed: int) -> dict[str, Any]:
    return {
        "truth": {
            str(degree): {
                "costs": costs_of(degree),
                "slots": case.slots,
                "kv_tokens": case.kv_tokens,
            }
            for degree in case.degrees
        },
        "workers": list(case.degrees),
        "policy": {"placement": "sticky", "admission": "unlimited", **case.policy},
        "prediction": {"kind": "oracle"},
        "seed": seed,
        "most_output": case.most_output,
        "engine": {"chunked_prefill": case.chunk},
        "journal": True,
    }


def costs_of(degree: int) -> dict[str, Any]:
    """The emulator's costs in the simulator's words: its decode step is a straight line in the batch."""
    costs = StepCosts(TimingProfile(), degree)
    return {
        "batches": [1, 2],
        "step_seconds": [costs.decode_step(1, 0), costs.decode_step(2, 0)],
        "context_token_s": costs.decode_context,
        "prefill_fixed_s": costs.prefill([]),
        "prefill_token_s": costs.prefill([(1, 0)])
        - costs.prefill([])
        - costs.prefill([(1, 1)]) / 2
        + costs.prefill([(1, 0)]) / 2,
        "prefill_pair_s": costs.prefill([(1, 1)]) - costs.prefill([(1, 0)]),
    }


def tokens(seed: str, count: int) -> bytes:
    return random.Random(seed).randbytes(count * ID_BYTES)


def micros(at: float) -> int:
    """The first microsecond that is not before ``at``."""
    whole = math.ceil(at * 1e6)
    while whole / 1e6 < at:
        whole += 1
    return whole
