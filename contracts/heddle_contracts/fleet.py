"""What a host says of its GPUs and engines, and what it is asked: the resource manager's view of a machine.

``GET /host/v1/status``, ``POST /host/v1/engines``, ``DELETE /host/v1/engines/{id}``.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Gpu = Annotated[int, Field(ge=0, le=4095)]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineState(StrEnum):
    """The life of an engine on a host: starting ─▶ ready ─▶ draining ─▶ (gone); failed from the first two."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """The gateways give it no new steps; it is stopped when its running ones have ended."""
    FAILED = "failed"
    """It did not come up, or would not drain. A failed one that never came up holds no GPUs."""


class StartEngine(_Contract):
    """Body of ``POST /host/v1/engines``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"examples": [{"degree": 4}, {"gpus": [4, 5, 6, 7]}]}
    )

    degree: int | None = Field(default=None, ge=1, description="MP degree; the host picks free GPUs.")
    gpus: tuple[Gpu, ...] | None = Field(default=None, min_length=1, description="Exactly these GPUs.")


class HostEngine(_Contract):
    """One engine of a host."""

    id: str
    degree: int
    gpus: tuple[int, ...]
    state: EngineState
    url: str | None = Field(default=None, description="Where gateways reach it, once that is known.")
    detail: str = Field(default="", description="What is wrong, where something is.")
    started_in_s: float | None = Field(default=None, description="Seconds from its launch to ready.")


class HostStatus(_Contract):
    """A host: its GPUs are numbered from 0, and an engine never spans two hosts."""

    name: str
    gpus: int = Field(ge=1)
    emulated: bool = False
    engines: tuple[HostEngine, ...] = ()
