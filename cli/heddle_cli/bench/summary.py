"""From measurements to figures: medians over rounds, and comparisons made within each round.

Invariant: a ratio or difference is taken between arms of one round; given are its median, least and greatest
over the rounds. Medians of different rounds are never divided by each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from heddle_cli.bench.arms import ArmName
from heddle_cli.bench.gateway_run import Measurement
from heddle_cli.bench.gateway_state import GatewayState
from heddle_cli.bench.scenarios import ScenarioName


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest over the rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        listed = list(values)
        return cls(median(listed), min(listed), max(listed))


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report: what is read from which scenario."""

    key: str
    label: str
    scenario: ScenarioName
    read: Callable[[Measurement], float]
    # The direct arm's server is the engine, so its CPU time is not a gateway's.
    gateways_only: bool = False


FIGURES = (
    Figure("requests_per_s", "requests/s", ScenarioName.REQUESTS, lambda m: m.load.requests_per_s),
    Figure("p99_ms", "p99 of these, ms", ScenarioName.REQUESTS, lambda m: m.load.p99_ms),
    Figure(
        "cpu_s_per_1k_requests",
        "CPU s per 1,000 requests",
        ScenarioName.REQUESTS,
        lambda m: m.cpu_s_per_1k_requests,
        gateways_only=True,
    ),
    Figure("alone_p50_ms", "p50 at 1 connection, ms", ScenarioName.ALONE, lambda m: m.load.p50_ms),
    Figure("alone_p99_ms", "p99 at 1 connection, ms", ScenarioName.ALONE, lambda m: m.load.p99_ms),
    Figure("chunks_per_s", "streamed chunks/s", ScenarioName.STREAMS, lambda m: m.load.chunks_per_s),
    Figure("stream_p50_ms", "p50 of a whole stream, ms", ScenarioName.STREAMS, lambda m: m.load.p50_ms),
    Figure(
        "paced_chunks_per_s",
        "paced streams: chunks/s",
        ScenarioName.PACED_STREAMS,
        lambda m: m.load.chunks_per_s,
    ),
    Figure(
        "paced_first_chunk_p50_ms",
        "paced streams: first chunk p50, ms",
        ScenarioName.PACED_STREAMS,
        lambda m: m.load.first_byte_p50_ms,
    ),
    Figure(
        "paced_cpu_ms_per_1k_chunks",
        "paced streams: CPU ms per 1,000 chunks",
        ScenarioName.PACED_STREAMS,
        lambda m: m.cpu_ms_per_1k_chunks,
        gateways_only=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A promise of the gateway and what this run says of it."""

    text: str
    value: float
    met: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures by key and arm; comparisons of Heddle by key and the other arm."""

    figures: dict[str, dict[ArmName, Spread]]
    heddle_over: dict[str, dict[ArmName, Spread]]
    added_p50_ms: dict[ArmName, Spread]
    targets: list[Target]


MAX_ADDED_P50_MS = 0.5


def _by_round(measurements: list[Measurement], figure: Figure) -> dict[ArmName, dict[int, float]]:
    table: dict[ArmName, dict[int, float]] = {}
    for item in measurements:
        if item.scenario is figure.scenario and not (figure.gateways_only and item.arm is ArmName.DIRECT):
            table.setdefault(item.arm, {})[item.round] = figure.read(item)
    return table


def _compare(
    one: dict[int, float], other: dict[int, float], operation: Callable[[float, float], float]
) -> Spread:
    return Spread.of(operation(value, other[number]) for number, value in one.items())


def summarise(measurements: list[Measurement], state: GatewayState) -> Summary:
    """Medians, comparisons within rounds, and the targets."""
    figures: dict[str, dict[ArmName, Spread]] = {}
    ratios: dict[str, dict[ArmName, Spread]] = {}
    added: dict[ArmName, Spread] = {}
    for figure in FIGURES:
        table = _by_round(measurements, figure)
        figures[figure.key] = {arm: Spread.of(rounds.values()) for arm, rounds in table.items()}
        ours = table[ArmName.HEDDLE]
        ratios[figure.key] = {
            arm: _compare(ours, rounds, lambda a, b: a / b)
            for arm, rounds in table.items()
            if arm is not ArmName.HEDDLE
        }
        if figure.key == "alone_p50_ms":
            direct = table[ArmName.DIRECT]
            added = {
                arm: _compare(rounds, direct, lambda a, b: a - b)
                for arm, rounds in table.items()
                if arm is not ArmName.DIRECT
            }
    return Summary(figures, ratios, added, _targets(ratios, added, state))


def _targets(
    ratios: dict[str, dict[ArmName, Spread]], added: dict[ArmName, Spread], state: GatewayState
) -> list[Target]:
    targets = []
    against_peer = ratios["requests_per_s"].get(ArmName.PEER)
    if against_peer is not None:
        ratio = against_peer.median
        targets.append(Target(f"at least as many requests/s as {ArmName.PEER}", ratio, ratio >= 1.0))
    ours = added[ArmName.HEDDLE].median
    text = f"adds at most {MAX_ADDED_P50_MS} ms to the p50 at 1 connection"
    targets.append(Target(text, ours, ours <= MAX_ADDED_P50_MS))
    targets.append(Target("no history record lost", state.history_lost, state.history_lost == 0))
    return targets
