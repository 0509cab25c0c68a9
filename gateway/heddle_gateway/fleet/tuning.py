"""The fleet's few numbers. All times in seconds."""

from dataclasses import dataclass, field

from heddle_gateway.supervision import Backoff


@dataclass(frozen=True, slots=True)
class FleetTuning:
    probe_period_s: float = 5.0
    probe_timeout_s: float = 10.0
    """Long: a scheduler in the middle of a large prefill answers late and is healthy."""
    failures_before_down: int = 3
    busy_limit_s: float = 600.0
    """How long an engine may be silent behind a server that answers: loading new weights takes minutes."""
    confirm_delay_s: float = 0.25
    """After a refused connection the second look comes this soon; refused again, the worker is down."""
    probe_spacing_s: float = 0.1
    """Least time between two probes of one worker, however many failures the byte path reports."""
    load_period_s: float = 1.0
    load_timeout_s: float = 3.0
    """A load report that took longer describes the past; it is dropped."""
    report_fresh_s: float = 3.0
    """While a shim's last report is younger, the worker's load is not polled: the shim tells it."""
    drain_timeout_s: float = 600.0
    drain_poll_s: float = 0.1
    control_timeout_s: float = 120.0
    """For fanned-out control calls: flushing a cache or pausing waits for the engine."""
    weights_timeout_s: float = 1800.0
    """For new weights: an engine answers when it has read all of them."""
    max_workers: int = 1024
    one_model: bool = False
    """Workers of another model are kept aside, and requests for another one refused."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts a worker may have; empty allows all that address.py does not block."""
    activation_backoff: Backoff = field(default_factory=lambda: Backoff(first=0.25, longest=5.0))
    """How often a worker that is not there yet, or is down, is asked again."""
    restart_backoff: Backoff = field(default_factory=Backoff)
    """How soon a failed background task is started again."""
