"""Worker profiles from public numbers of a model and a GPU: the slower of memory and arithmetic, plus what is
not overlapped.

One decode step at batch b on p GPUs reads all weights once and every sequence's KV, multiplies 2 FLOPs a
parameter and sequence, and does two all-reduces a layer:

    step(b) = max(weights / (p BW e_bw), 2 params b / (p FLOPS e_flops))
              + layers (layer overhead + 2 allreduce(b)) + step overhead
    context = KV bytes a token / (p BW e_kv)            for each token of context in the batch

Efficiencies and overheads are this model's assumptions, each stated with its reason; a measured profile
(``heddle profile URL``) is better where there is a worker to measure. ``python -m
heddle_planner.profiles.roofline DIR`` writes the packaged profiles.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
DEGREES = (1, 2, 4, 8)
BYTES = 2
"""bfloat16, the type the models are published in."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Numbers of a model's config.json."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Weights that a decode step reads: all but the input embedding, of which it reads one row a
        sequence.
        """
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        feed_forward = 3 * self.hidden * self.intermediate
        return self.layers * (attention + feed_forward) + self.hidden * self.vocabulary

    @property
    def stored_parameters(self) -> int:
        """Weights in memory: with the input embedding."""
        return self.parameters + self.hidden * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES


@dataclass(frozen=True, slots=True)
class Gpu:
    """Numbers of a GPU's data sheet. Bytes, FLOPs and seconds."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    network: float


QWEN3 = (
    ModelShape("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936),
    ModelShape("Qwen3-14B", 40, 5120, 40, 8, 128, 17408, 151936),
    ModelShape("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936),
)
GPUS = (
    Gpu("H100-SXM", memory=80e9, bandwidth=3.35e12, flops=989.4e12, link=450e9, network=50e9),
    Gpu("H200-SXM", memory=141e9, bandwidth=4.8e12, flops=989.4e12, link=450e9, network=50e9),
)

BANDWIDTH_SHARE = 0.80
COMPUTE_SHARE = 0.60
KV_SHARE = 0.65
LINK_SHARE = 0.60
NETWORK_SHARE = 0.80
MEMORY_SHARE = 0.88
LAYER_OVERHEAD_S = 12e-6
STEP_OVERHEAD_S = 0.5e-3
ALLREDUCE_LATENCY_S = {1: 0.0, 2: 6e-6, 4: 8e-6, 8: 11e-6}
PREFILL_CONTEXT = 4096
SLOTS = 256

_ASSUMPTIONS = {
    "bandwidth_share": f"{BANDWIDTH_SHARE} of the data sheet's memory bandwidth reached by weight-bound"
    f" matrix products;"
    " assumed (copy kernels reach 0.85-0.92 of it)",
    "compute_share": f"{COMPUTE_SHARE} of the dense bf16 peak reached by large matrix products; assumed"
    f" (power-limited at 0.6-0.75)",
    "kv_share": f"{KV_SHARE} of the memory bandwidth reached by paged decode attention; assumed, lower"
    f" than weights (page gathers)",
    "link_share": f"{LINK_SHARE} of NVLink's bandwidth reached by an all-reduce of activations; assumed",
    "network_share": f"{NETWORK_SHARE} of the network card's line rate reached by a KV transfer; assumed",
    "memory_share": f"{MEMORY_SHARE} of the GPU's memory for weights and KV: SGLang's usual"
    f" mem_fraction_static",
    "layer_overhead": f"{LAYER_OVERHEAD_S * 1e6:.0f} us a layer between kernels inside a CUDA graph;"
    f" assumed (about ten kernels)",
    "step_overhead": f"{STEP_OVERHEAD_S * 1e3:.1f} ms a step for sampling and scheduling not overlapped;"
    f" assumed",
    "allreduce_latency": "6, 8, 11 us at 2, 4, 8 GPUs for a small one-shot all-reduce over NVLink; assumed",
    "prefill": f"rate at a context of {PREFILL_CONTEXT} tokens: 2 FLOPs a parameter, causal attention 4 x"
    f" heads x head size x"
    " context / 2 FLOPs a layer, and the all-reduces",
    "slots": f"{SLOTS} requests, a usual max_running_requests",
}


def profile(model: ModelShape, gpu: Gpu) -> WorkerProfile:
    """The modelled worker at MP degrees 1, 2, 4 and 8, each number with its source."""
    source = f"huggingface.co/Qwen/{model.name} config.json"
    sheet = f"NVIDIA {gpu.name.removesuffix('-SXM')} data sheet, SXM"
    sources = {
        "model": f"layers {model.layers}, hidden {model.hidden}, heads {model.heads}, KV heads"
        f" {model.kv_heads}, head size"
        f" {model.head_size}, intermediate {model.intermediate}, vocabulary {model.vocabulary}, untied"
        f" embeddings: {source}",
        "kv_bytes_per_token": f"{model.kv_bytes_per_token}: 2 x layers x KV heads x head size x {BYTES}"
        f" bytes",
        "memory": f"{gpu.memory / 1e9:.0f} GB: {sheet}",
        "bandwidth": f"{gpu.bandwidth / 1e12:.2f} TB/s: {sheet}",
        "flops": f"{gpu.flops / 1e12:.1f} TFLOPS bf16, dense (half of the sparse figure): {sheet}",
        "link": f"{gpu.link / 1e9:.0f} GB/s a direction (900 GB/s NVLink both ways): {sheet}",
        "network": f"{gpu.network / 1e9:.0f} GB/s a GPU: one 400 Gb/s card for each GPU, as in NVIDIA DGX"
        f" H100/H200",
        **_ASSUMPTIONS,
    }
    degrees = {degree: _degree(model, gpu, degree) for degree in DEGREES}
    return WorkerProfile(model=model.name, gpu=gpu.name, made_by="roofline", sources=sources, degrees=degrees)


def _degree(model: ModelShape, gpu: Gpu, degree: int) -> DegreeProfile:
    kv_bytes = MEMORY_SHARE * gpu.memory * degree - BYTES * model.stored_parameters
    return DegreeProfile(
        batches=BATCHES,
        step_seconds=tuple(_rounded(_step_seconds(model, gpu, degree, batch)) for batch in BATCHES),
        seconds_per_context_token=_rounded(model.kv_bytes_per_token / (degree * gpu.bandwidth * KV_SHARE)),
        prefill_tokens_per_second=_rounded(1 / _prefill_seconds_per_token(model, gpu, degree)),
        kv_tokens=int(kv_bytes / model.kv_bytes_per_token),
        slots=SLOTS,
        transfer_tokens_per_second=_rounded(degree * gpu.network * NETWORK_SHARE / model.kv_bytes_per_token),
    )


def _step_seconds(model: ModelShape, gpu: Gpu, degree: int, batch: int) -> float:
    reading = BYTES * model.parameters / (degree * gpu.bandwidth * BANDWIDTH_SHARE)
    arithmetic = 2 * model.parameters * batch / (degree * gpu.flops * COMPUTE_SHARE)
    allreduce = ALLREDUCE_LATENCY_S[degree] + batch * _allreduce_seconds_per_token(model, gpu, degree)
    return max(reading, arithmetic) + model.layers * (LAYER_OVERHEAD_S + 2 * allreduce) + STEP_OVERHEAD_S


def _allreduce_seconds_per_token(model: ModelShape, gpu: Gpu, degree: int) -> float:
    """Ring traffic of one all-reduce of one token's activations: 2 (p - 1) / p of them over each link."""
    return 2 * (degree - 1) / degree * model.hidden * BYTES / (gpu.link * LINK_SHARE)


def _prefill_seconds_per_token(model: ModelShape, gpu: Gpu, degree: int) -> float:
    attention = model.layers * 4 * model.heads * model.head_size * PREFILL_CONTEXT / 2
    arithmetic = (2 * model.parameters + attention) / (degree * gpu.flops * COMPUTE_SHARE)
    return arithmetic + 2 * model.layers * _allreduce_seconds_per_token(model, gpu, degree)


def _rounded(value: float) -> float:
    """Four digits: more would claim what a model does not know."""
    return float(f"{value:.4g}")


def packaged_name(model: ModelShape, gpu: Gpu) -> str:
    """The name a profile is packaged under, such as ``qwen3-8b-h100``."""
    return f"{model.name}-{gpu.name.removesuffix('-SXM')}".lower()


def write_all(folder: Path) -> list[Path]:
    """Writes a file for each model and GPU; returns them."""
    written = []
    for model in QWEN3:
        for gpu in GPUS:
            path = folder / f"{packaged_name(model, gpu)}.json"
            path.write_text(profile(model, gpu).model_dump_json(indent=1) + "\n", encoding="utf-8")
            written.append(path)
    return written


if __name__ == "__main__":
    for path in write_all(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
