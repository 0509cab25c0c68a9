"""What is measured: four kinds of load."""

from dataclasses import dataclass
from enum import StrEnum


class ScenarioName(StrEnum):
    """The kinds of load."""

    REQUESTS = "requests"
    ALONE = "alone"
    STREAMS = "streams"
    PACED_STREAMS = "paced_streams"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load. `chunk_delay_us`: the engine's pause before each event of a stream."""

    name: ScenarioName
    connections: int
    seconds: float
    streamed: bool
    tokens: int
    chunk_delay_us: int = 0


# An engine's inter-token latency in a good batch; the gateway has to keep pace with it at little CPU time.
PACE_US = 5_000
# Tokens of an answer that is not streamed, and the words in it that the history repeats at each step.
PLAIN_TOKENS = 32


def scenarios(connections: int, seconds: float, stream_chunks: int) -> tuple[Scenario, ...]:
    """The loads of one round, in the order in which they are measured."""
    return (
        Scenario(ScenarioName.REQUESTS, connections, seconds, False, PLAIN_TOKENS),
        Scenario(ScenarioName.ALONE, 1, seconds / 2, False, PLAIN_TOKENS),
        Scenario(ScenarioName.STREAMS, connections, seconds, True, stream_chunks),
        Scenario(ScenarioName.PACED_STREAMS, connections, seconds, True, stream_chunks, PACE_US),
    )
