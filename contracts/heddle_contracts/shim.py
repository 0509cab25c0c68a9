"""What a worker's shim and the gateway say to each other: registration, reports, priorities, residency.

A shim registers with ``POST /workers`` (its engine's URL and its own), sends a report each second to
``POST /workers/{id}/report``, and takes the worker out with ``DELETE /workers/{url}?leaves=true``. Reports
carry no time of day: the gateway notes when one came.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

EngineHealth = Literal["starting", "ready", "busy", "dead"]
"""*Busy*: its HTTP front answers, its scheduler does not yet. *Dead*: nobody answers, or its process ended.
"""


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WorkerReport(_Contract):
    """One look at an engine. What is not known is None. KV in tokens."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "instance": "5f0c.../1",
                    "engine": "ready",
                    "weight_version": "default",
                    "running": 12,
                    "waiting": 3,
                    "kv_used": 181000,
                    "kv_tokens": 412000,
                    "cache_hit_rate": 0.93,
                    "output_tokens_s": 840.5,
                }
            ]
        }
    )

    instance: str = Field(
        min_length=1, max_length=128, description="Another one at each start of shim or engine."
    )
    engine: EngineHealth
    url: str | None = Field(
        default=None,
        max_length=2048,
        description="The engine's, as it was registered. Ids count from 1 in each life of a gateway: the URL "
        "says whose report it is.",
    )
    weight_version: str | None = None
    running: int | None = Field(default=None, ge=0, description="Requests in the running batch.")
    waiting: int | None = Field(default=None, ge=0)
    kv_used: int | None = Field(default=None, ge=0)
    kv_tokens: int | None = Field(default=None, ge=0)
    cache_hit_rate: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of prompt tokens found in the cache, over the last seconds.",
    )
    output_tokens_s: float | None = Field(default=None, ge=0, description="Over the last seconds.")
    retractions: int | None = Field(
        default=None, ge=0, description="Requests that lost their place, since the engine's start."
    )
    detail: str = Field(default="", max_length=1024, description="What is wrong, where something is.")


class Priorities(_Contract):
    """Body of ``POST /shim/v1/priorities``: new priorities of queued requests by engine request id."""

    priorities: dict[str, int] = Field(max_length=4096)


class PrioritiesSet(_Contract):
    applied: int = Field(description="Requests found on the engine.")
    remembered: int = Field(description="Not seen yet; they get theirs when they come.")


class PrefixQuery(_Contract):
    """Which prefix: ``rid`` of a request that ended on the engine, or ``tokens``. One of the two."""

    rid: str | None = Field(default=None, max_length=512)
    tokens: tuple[int, ...] | None = Field(default=None, max_length=4_000_000)


class Residency(_Contract):
    """Where the full pages of a prefix lie, counted from its first page without a hole."""

    pages: int
    page_size: int
    device: int | None = Field(description="In the accelerator's memory; None where events are not followed.")
    host: int | None = Field(description="In the engine's host memory; None where events are not followed.")
    store: int | None = Field(description="In the shim's page store; None where there is none.")


class Warmed(_Contract):
    """Tokens that the engine had of a prefix, and that were loaded into its host memory from the store."""

    had: int
    loaded: int
