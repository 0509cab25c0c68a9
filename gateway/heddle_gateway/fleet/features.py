"""What an engine is and what it can do.

A worker is asked, not guessed from its version: each feature is recorded as seen, and what is missing is
done without.
"""

from dataclasses import dataclass
from enum import StrEnum


class EngineKind(StrEnum):
    """The family of server behind a worker's URL."""

    SGLANG = "sglang"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class PrioritySense(StrEnum):
    """How an engine reads the ``priority`` field of a request.

    ``NONE`` means: do not send the field. vLLM answers 400 to a priority when its policy is fcfs, and SGLang
    answers 503 with ``--abort-on-priority-when-disabled``.
    """

    HIGHER_FIRST = "higher"
    LOWER_FIRST = "lower"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Features:
    """Seen abilities of one worker; False where it did not show them.

    ``abort``: ``POST /abort_request {"rid"}``. ``rid``: a request body's ``rid`` names the request.
    ``loads``: running and waiting counts can be polled. ``generate``: SGLang's ``/generate``.
    ``pause``: ``/pause_generation`` and ``/continue_generation``. ``flush``: ``/flush_cache``.
    """

    abort: bool = False
    rid: bool = False
    loads: bool = False
    generate: bool = False
    pause: bool = False
    flush: bool = False
    priority: PrioritySense = PrioritySense.NONE
