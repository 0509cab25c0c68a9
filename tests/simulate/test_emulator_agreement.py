"""The simulated worker and the emulated one are two programs for the same thing: given the same
decisions, every step ends at the same moment on both, with the same tokens from the cache.

A simulation writes the core's journal. Its events are handed to a core of our own, whose dispatches go to
emulated workers; what those do must be what the journal says happened next.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import heddle_core
import pytest
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.generation import Ending, Generation
from heddle_shim.emulator.timing import StepCosts, TimingProfile

from .same_trace import Case, scripts_of, spec_of, tokens

CLOCK_S: Final = 2.1e-6
"""The core's clock has microseconds: an end is told up to one late, and was then worked out from a start
up to one late."""


ROOMY = Case([1, 2], slots=64, kv_tokens=300_000, policy={"order": "fcfs"}, trajectories=40)
CASES: Final = {
    "roomy": ROOMY,
    "slots run out, the engine queues": Case(
        [1], slots=4, kv_tokens=300_000, policy={"order": "fcfs", "backlog": 1000}, trajectories=30
    ),
    "long ones preempt": Case(
        [1, 4],
        slots=3,
        kv_tokens=300_000,
        policy={"order": "longest_first", "backlog": 1000},
        trajectories=40,
    ),
    "the pool is small: eviction": Case(
        [1, 1], slots=16, kv_tokens=12_000, policy={"order": "fcfs", "backlog": 1000}, trajectories=40
    ),
    "little is asked for, the pool runs dry: retraction": Case(
        [1],
        slots=32,
        kv_tokens=9_000,
        policy={"order": "longest_first", "backlog": 1000},
        trajectories=30,
        most_output=1,
    ),
    "prompts come in chunks": Case(
        [2], slots=8, kv_tokens=60_000, policy={"order": "fcfs", "backlog": 1000}, trajectories=30, chunk=512
    ),
}


class EmulatedCluster:
    """Emulated workers that are sent what a core dispatches."""

    def __init__(self, case: Case, scripts: Sequence[Any]) -> None:
        self.case = case
        self.engines = [
            Engine(
                EngineConfig(
                    max_running_requests=case.slots,
                    max_total_num_tokens=case.kv_tokens,
                    chunked_prefill_size=case.chunk,
                ),
                StepCosts(TimingProfile(), degree),
            )
            for degree in case.degrees
        ]
        self.scripts = scripts
        self.texts: dict[int, bytes] = {}
        self.turns: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.sent: dict[int, Generation] = {}

    def arrived(self, step: int, trajectory: int) -> None:
        self.owners[step] = trajectory

    def dispatch(self, now: float, step: int, worker: int, priority: int) -> None:
        trajectory = self.owners[step]
        prompt, group, _, turns = self.scripts[trajectory]
        turn = self.turns.get(trajectory, 0)
        self.turns[trajectory] = turn + 1
        if turn == 0:
            text = tokens(f"group {group}", prompt)
        else:
            text = self.texts[trajectory] + tokens(f"{trajectory} tool {turn}", turns[turn][0])
        output = tokens(f"{trajectory} answer {turn}", turns[turn][1])
        self.texts[trajectory] = text + output
        generation = Generation(
            rid=str(step),
            prompt=text,
            output=output,
            max_new_tokens=max(self.case.most_output, turns[turn][1]),
            priority=priority,
        )
        self.sent[step] = generation
        self.engines[worker].submit(now, [generation])


def carry_out(
    cluster: EmulatedCluster, core: heddle_core.Core, now: int, event: dict[str, Any] | None
) -> None:
    """Hands one line of the journal to the core, and its dispatches to the emulated workers."""
    if event is None:
        actions = core.handle_timeout(now)
    else:
        [(kind, fields)] = event.items()
        match kind:
            case "worker_up":
                profile = json.dumps({k: v for k, v in fields.pop("profile").items() if v is not None})
                actions = core.worker_up(
                    now, fields.pop("worker"), fields.pop("generation"), **fields, profile_json=profile
                )
            case "step_arrived":
                fields.pop("pinned_worker")
                cluster.arrived(fields["step"], fields["trajectory"])
                actions = core.step_arrived(now, fields.pop("step"), fields.pop("trajectory"), **fields)
            case "step_ended":
                actions = core.step_ended(now, fields.pop("step"), fields.pop("outcome"), **fields)
            case "load_report":
                actions = core.load_report(now, fields.pop("worker"), fields.pop("generation"), **fields)
            case "first_byte" | "predicted":
                actions = getattr(core, kind)(now, *fields.values())
            case _:
                raise AssertionError(f"unexpected event {kind}")
    for action in actions:
        if isinstance(action, heddle_core.Dispatch):
            cluster.dispatch(now / 1e6, action.step, action.worker, action.priority)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_step_ends_on_the_emulated_worker_when_it_ends_on_the_simulated_one(
    name: str, seed: int
) -> None:
    case = CASES[name]
    scripts = scripts_of(case, seed)
    spec = spec_of(case, seed)
    report, journal = heddle_core.simulate(heddle_core.SimWorkload(scripts), json.dumps(spec))
    lines = [json.loads(line) for line in journal.splitlines()]
    core = heddle_core.Core(json.dumps(spec["policy"]))
    cluster = EmulatedCluster(case, scripts)
    ends: dict[int, tuple[float, int]] = {}
    for entry in lines[1:]:
        event = entry.get("event")
        if event is not None and "step_ended" in event:
            ended = event["step_ended"]
            ends[ended["step"]] = (entry["now"] / 1e6, ended["cached_tokens"])
        carry_out(cluster, core, entry["now"], event)
    for engine in cluster.engines:
        engine.advance(1e9)
        assert engine.audit() == []
    assert ends.keys() == cluster.sent.keys()
    steps = sum(len(turns) for _, _, _, turns in scripts)
    assert len(ends) == steps
    for step, (at, cached) in ends.items():
        generation = cluster.sent[step]
        assert generation.ending is Ending.PLANNED
        assert generation.finished_at == pytest.approx(at, abs=CLOCK_S * steps), f"step {step}"
        assert generation.cached_tokens == cached, f"step {step}"
    totals = json.loads(report)
    set_back = totals["preemptions"] + totals["retractions"]
    assert sum(engine.totals.retractions for engine in cluster.engines) == set_back
    if "preempt" in name:
        assert totals["preemptions"] > 0
    if "retraction" in name:
        assert totals["retractions"] > 0
    if "eviction" in name:
        assert sum(worker["evicted"] for worker in totals["workers"]) > 0
