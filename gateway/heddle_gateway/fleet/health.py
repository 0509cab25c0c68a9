"""When a worker is busy and when it is dead. Pure: time is an argument, nothing is asked here.

One slow probe proves nothing: N failures in a row do, or a connection refused twice. And a worker that
streams bytes while its probe waits is alive whatever the probe says.
"""

from dataclasses import dataclass
from enum import StrEnum

from heddle_gateway.fleet.errors import AskFailed, CannotAsk, EngineBusy, Unreachable


class Verdict(StrEnum):
    BUSY = "busy"
    """The probe failed, yet the worker works, or may: steps got bytes meanwhile, its front says so, or it was
    not asked for a lack of ours. Not counted.
    """
    SUSPECT = "suspect"
    CONFIRM = "confirm"
    """Refused once: look again at once."""
    DOWN = "down"


@dataclass(slots=True)
class HealthLedger:
    """What is held for and against one life of a worker. Times are seconds of one monotonic clock."""

    failures_before_down: int
    busy_limit_s: float
    """How long the front of a server may vouch for a silent engine."""
    failures: int = 0
    refusals: int = 0
    last_sign_of_life: float = float("-inf")
    busy_since: float | None = None

    def sign_of_life(self, now: float) -> None:
        """The worker sent bytes of an answer. Called from the byte path: keep it this cheap."""
        self.last_sign_of_life = now

    def probe_answered(self) -> None:
        self.failures = 0
        self.refusals = 0
        self.busy_since = None

    def probe_failed(self, failure: AskFailed, started_at: float) -> Verdict:
        """Judges a failed probe that began at ``started_at``."""
        if self.last_sign_of_life > started_at or isinstance(failure, CannotAsk):
            return Verdict.BUSY
        if isinstance(failure, EngineBusy):
            if self.busy_since is None:
                self.busy_since = started_at
            if started_at - self.busy_since < self.busy_limit_s:
                return Verdict.BUSY
        self.failures += 1
        if not isinstance(failure, Unreachable):
            self.refusals = 0
        else:
            self.refusals += 1
            if self.refusals >= 2:
                return Verdict.DOWN
        if self.failures >= self.failures_before_down:
            return Verdict.DOWN
        return Verdict.CONFIRM if self.refusals else Verdict.SUSPECT
