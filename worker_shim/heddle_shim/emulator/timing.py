"""How long the modelled GPU takes: decode steps and prefill chunks by batch, context and MP degree.

The defaults have the scale of an 8-billion-parameter dense model in bf16 on an H100-class GPU (80 GB, 3.35
TB/s, about 500 TFLOP/s in practice) and come from its arithmetic, not from a measurement:

* A decode step reads all weights once (16 GB, 5.2 ms on one GPU, split over the MP degree), reads the KV
  of every running request (144 KiB a token) and pays a fixed launch and all-reduce cost that no degree
  shrinks. So degree 4 is 2.5 times, not 4 times, as fast for one request, and a step gets slower with
  company (the paper's F).
* Prefill is bound by compute: 28,000 tokens/s on one GPU, plus attention that grows with the context
  before the token.

All times are simulated seconds.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path


class ProfileError(ValueError):
    """A timing profile that cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class TimingProfile:
    """Costs at MP degree 1 and how they shrink with the degree d. A JSON object of these fields overrides
    them.
    """

    decode_fixed_s: float = 1.3e-3
    """Launches and all-reduces of one decode step; the same at every degree."""
    decode_weights_s: float = 5.2e-3
    """Reading the weights once; divided by d."""
    decode_request_s: float = 32e-6
    """Compute of one token of one request (16 GFLOP); divided by d ** ``scaling``."""
    decode_context_s: float = 62e-9
    """Reading the KV of one token of context; divided by d."""
    prefill_fixed_s: float = 4e-3
    """Launches of one prefill batch; the same at every degree."""
    prefill_token_s: float = 1 / 28_000
    """Compute of one prompt token; divided by d ** ``scaling``."""
    prefill_context_s: float = 1.2e-9
    """Attention of one prompt token to one token before it; divided by d ** ``scaling``."""
    scaling: float = 0.85
    """Exponent of the speed-up of compute with the degree; below 1 because all-reduces grow."""
    kv_gpu_bytes: float = 68e9
    """Memory of one GPU that weights and KV share (mem_fraction_static 0.85 of 80 GB)."""
    weight_bytes: float = 16e9
    """All weights, split over the degree."""
    kv_token_bytes: float = 147_456
    """KV of one token, split over the degree (36 layers, 8 KV heads of 128, keys and values, bf16)."""
    transfer_bytes_s: float = 12.5e9
    """Bytes a second of the link that KV leaves and arrives by (100 Gbit/s); 0: KV cannot be moved."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise ProfileError(f"{name}: must be a number of at least 0, not {value!r}")
        if self.decode_fixed_s + self.decode_weights_s + self.decode_request_s <= 0:
            raise ProfileError("decode_fixed_s: a decode step must take some time")
        if self.kv_token_bytes <= 0:
            raise ProfileError("kv_token_bytes: must be above 0")

    @classmethod
    def from_file(cls, path: Path) -> "TimingProfile":
        """Reads overrides from a JSON object; unknown fields are refused."""
        try:
            given = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ProfileError(f"{path}: {error}") from error
        if not isinstance(given, dict):
            raise ProfileError(f"{path}: must hold one JSON object")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ProfileError(f"{path}: unknown field {unknown[0]}; known are {', '.join(sorted(known))}")
        return cls(**given)


class StepCosts:
    """The profile at one MP degree."""

    def __init__(self, profile: TimingProfile, degree: int) -> None:
        if degree < 1:
            raise ProfileError(f"the MP degree must be at least 1, not {degree}")
        compute = math.pow(degree, profile.scaling)
        self.profile = profile
        self.degree = degree
        self._decode_base = profile.decode_fixed_s + profile.decode_weights_s / degree
        self._decode_request = profile.decode_request_s / compute
        self.decode_context = profile.decode_context_s / degree
        """Seconds that one more token of context adds to a decode step."""
        self._prefill_fixed = profile.prefill_fixed_s
        self._prefill_token = profile.prefill_token_s / compute
        self._prefill_context = profile.prefill_context_s / compute
        free = profile.kv_gpu_bytes * degree - profile.weight_bytes
        self.kv_capacity = max(0, int(free / profile.kv_token_bytes))
        """Tokens of KV that fit beside the weights."""
        self.transfer_token = (
            profile.kv_token_bytes / profile.transfer_bytes_s if profile.transfer_bytes_s else math.inf
        )
        """Seconds that the KV of one token takes over the link; infinite where KV cannot be moved."""

    def decode_step(self, batch: int, context: int) -> float:
        """One token for each of ``batch`` requests that together hold ``context`` tokens of KV."""
        return self._decode_base + batch * self._decode_request + context * self.decode_context

    def prefill(self, parts: list[tuple[int, int]]) -> float:
        """One batch of prompt parts, each (new tokens, tokens of context before them)."""
        new = sum(tokens for tokens, _ in parts)
        pairs = sum(tokens * (before + tokens / 2) for tokens, before in parts)
        return self._prefill_fixed + new * self._prefill_token + pairs * self._prefill_context
