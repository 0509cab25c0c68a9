"""One run of the gateway benchmark: rounds of scenarios, each measured on every arm in turn."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from heddle_cli.bench import loadgen_binary
from heddle_cli.bench.arms import ArmName, Arms
from heddle_cli.bench.loadgen_binary import LoadFigures
from heddle_cli.bench.scenarios import Scenario, ScenarioName

# Seconds of load before each measurement: connections open, caches fill, the allocator settles.
WARMUP_S = 0.5
# Our answers carry the step's index: each answer shows that the gateway recognised the conversation.
STEP_HEADER = "x-heddle-step"
# Pause after a measurement, so that what an arm does later (history, metrics) counts as its own CPU time and
# does not take time from the next arm.
SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chose."""

    connections: int
    rounds: int
    seconds: float
    stream_chunks: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm under one load in one round. `cpu_s`: CPU seconds of the arm's server in it, with warm-up."""

    round: int
    scenario: ScenarioName
    arm: ArmName
    load: LoadFigures
    cpu_s: float

    @property
    def cpu_s_per_1k_requests(self) -> float:
        """CPU seconds of the server for a thousand requests."""
        return self.cpu_s / self.load.whole_requests * 1000

    @property
    def cpu_ms_per_1k_chunks(self) -> float:
        """CPU milliseconds of the server for a thousand events."""
        return self.cpu_s * 1000 / self.load.whole_chunks * 1000

    def as_json(self) -> dict[str, object]:
        """For the JSON report."""
        return asdict(self)


def requests_answered(measurements: list[Measurement], arm: ArmName) -> int:
    """Of one arm in the whole run, warm-ups included."""
    return sum(item.load.whole_requests for item in measurements if item.arm is arm)


def _in_turn(arms: list[ArmName], offset: int) -> list[ArmName]:
    """The arms, beginning with another one each time: none is always the one after an idle machine."""
    offset %= len(arms)
    return arms[offset:] + arms[:offset]


def _measure(
    binary: Path, arms: Arms, bodies: dict[bool, Path], scenario: Scenario, arm: ArmName, round_number: int
) -> Measurement:
    server = arms.servers[arm]
    before = server.usage()
    load = loadgen_binary.measure(
        binary,
        server.url,
        bodies[scenario.streamed],
        connections=scenario.connections,
        seconds=scenario.seconds,
        warmup_s=WARMUP_S,
        tokens=scenario.tokens,
        step_header=STEP_HEADER if arm is ArmName.HEDDLE else None,
    )
    time.sleep(SETTLE_S)
    server.check_alive()
    return Measurement(round_number, scenario.name, arm, load, server.usage().cpu_s - before.cpu_s)


def run(
    binary: Path,
    arms: Arms,
    bodies: dict[bool, Path],
    plan: tuple[Scenario, ...],
    rounds: int,
    on_progress: Callable[[str], None],
) -> list[Measurement]:
    """Measures every scenario on every arm, `rounds` times. Raises BenchError when a request failed."""
    measurements = []
    for round_number in range(rounds):
        for position, scenario in enumerate(plan):
            arms.set_pace(scenario.chunk_delay_us)
            for arm in _in_turn(list(arms.servers), round_number + position):
                on_progress(f"round {round_number + 1} of {rounds}: {scenario.name.replace('_', ' ')}, {arm}")
                measurements.append(_measure(binary, arms, bodies, scenario, arm, round_number))
    return measurements
