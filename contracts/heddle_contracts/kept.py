"""How a gateway with a Redis says whether an operator's command outlives it: a header of the answer."""

from typing import Final

KEPT_HEADER: Final = "x-heddle-kept"
KEPT_IN_REDIS: Final = "redis"
KEPT_IN_PROCESS: Final = "local"
"""In force, and written as soon as Redis can be reached; as live_state in /ready calls it."""
