"""Limits and policies of one emulated engine."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class PauseMode(StrEnum):
    """What /pause_generation does to the requests in flight."""

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Named after SGLang's server arguments, with its defaults where Heddle has no reason for another."""

    max_running_requests: int = 64
    """Slots."""
    max_total_num_tokens: int = 350_000
    """KV pool in tokens."""
    page_size: int = 1
    """Tokens of a KV page; prefixes are shared in whole pages."""
    chunked_prefill_size: int = 8192
    """Most new tokens of one prefill batch."""
    max_queued_requests: int | None = None
    """Bound of the waiting queue; None for none."""
    enable_priority_scheduling: bool = True
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10
    """Preempt only what is worse by more than this."""
    schedule_low_priority_values_first: bool = False
    default_priority_value: int | None = None
    """Priority of requests that bring none; None for the lowest there is."""
    retraction_policy: Literal["length", "priority"] = "length"
    """Who stays when the pool runs dry: the longest outputs, or the highest priorities."""

    def __post_init__(self) -> None:
        if self.max_running_requests < 1:
            raise ValueError(f"max_running_requests must be at least 1, not {self.max_running_requests}")
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")
        if self.chunked_prefill_size < self.page_size:
            raise ValueError(f"chunked_prefill_size {self.chunked_prefill_size} is below the page size")
        if self.max_total_num_tokens < self.page_size:
            raise ValueError(f"max_total_num_tokens {self.max_total_num_tokens} is below the page size")
