"""What a worker of one model and GPU does, by MP degree: the worker's speed and capacity that planning rests
on.

Two forms share the file format. The full form holds decode step times by batch, the price of context, prefill
rate, KV tokens and transfer rate; ``heddle profile`` measures it and the roofline generator models it. The
short form holds only the paper's T and F (arXiv 2603.28101 §5.2), all that the ``size_only`` cost needs.

Invariants: batches start at 1 and rise; step time and F never fall with company; every number is finite.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    PositiveFloat,
    Tag,
    model_validator,
)

Degree = Annotated[int, Field(ge=1)]
PositiveFinite = Annotated[FiniteFloat, Field(gt=0)]


def _refuse_falling(name: str, values: Iterable[float]) -> None:
    before = 0.0
    for index, value in enumerate(values):
        if value < before:
            raise ValueError(
                f"{name}[{index}] = {value} falls below {name}[{index - 1}] = {before}; more company never"
                f" makes a token"
                " faster, so smooth the measurement (running maximum)"
            )
        before = value


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DegreeFactors(_Contract):
    """The short form: a group of size s takes ``longest x T x F[s - 1]``; the last F holds for all larger
    groups.
    """

    T: PositiveFloat = Field(description="Seconds a token at batch 1.")
    F: tuple[PositiveFinite, ...] = Field(
        min_length=1, description="Interference factor by group size, from 1."
    )

    @model_validator(mode="after")
    def _rises(self) -> Self:
        _refuse_falling("F", self.F)
        return self


class DegreeProfile(_Contract):
    """A worker of one MP degree."""

    batches: tuple[int, ...] = Field(min_length=1, description="Decode batch sizes, rising from 1.")
    step_seconds: tuple[PositiveFinite, ...] = Field(
        description="Seconds of one decode step at each of `batches`, before the price of context."
    )
    seconds_per_context_token: NonNegativeFloat = Field(
        default=0.0,
        description="Seconds a decode step takes longer for each token of context in its batch (KV reading).",
    )
    prefill_tokens_per_second: NonNegativeFloat = Field(
        default=0.0, description="Uncached prompt tokens a second; 0 if not known."
    )
    kv_tokens: int = Field(default=0, ge=0, description="Tokens the KV cache holds; 0 if not known.")
    slots: int = Field(ge=1, description="Requests that run at once (SGLang: max_running_requests).")
    transfer_tokens_per_second: NonNegativeFloat = Field(
        default=0.0, description="KV tokens a second that can be sent to another worker; 0 if not known."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.step_seconds) != len(self.batches):
            raise ValueError(
                f"step_seconds has {len(self.step_seconds)} values for {len(self.batches)} batches; give"
                f" one for each"
            )
        if self.batches[0] != 1 or any(a >= b for a, b in zip(self.batches, self.batches[1:], strict=False)):
            raise ValueError(f"batches must rise from 1, got {list(self.batches)}")
        _refuse_falling("step_seconds", self.step_seconds)
        return self


def _form(value: Any) -> str:
    """Which form a degree is meant to be in, so that only its own faults are reported."""
    if isinstance(value, DegreeFactors) or (isinstance(value, dict) and value.keys() & {"T", "F"}):
        return "factors"
    return "steps"


AnyDegree = Annotated[
    Annotated[DegreeProfile, Tag("steps")] | Annotated[DegreeFactors, Tag("factors")], Discriminator(_form)
]


class WorkerProfile(_Contract):
    """Workers of one model on one GPU type."""

    schema_version: Literal[1] = 1
    model: str = Field(default="", description="Model as served.")
    gpu: str = Field(default="", description="GPU type, such as H100-SXM.")
    made_by: Literal["roofline", "ladder", "decode_moments", "hand"] = Field(
        default="hand",
        description="Modelled from public numbers, measured by a batch ladder, fitted to a worker's own"
        " counters, or written.",
    )
    sources: dict[str, str] = Field(
        default_factory=dict,
        description="Where each number comes from: name of the number, its value and source.",
    )
    degrees: dict[Degree, AnyDegree] = Field(min_length=1, description="Workers by MP degree.")

    @property
    def has_steps(self) -> bool:
        """Whether every degree is in the full form, which the ``simulated`` cost needs."""
        return all(isinstance(degree, DegreeProfile) for degree in self.degrees.values())
