"""A real SGLang server on a CPU that has neither CUDA nor AMX: ``python launch.py --model-path DIR ...``

Takes every option of ``python -m sglang.launch_server``. It stays a file that is run by path: SGLang starts
its scheduler and detokenizer with multiprocessing's spawn, which runs this file's top level again in each.

What it bridges, and why. Nothing of SGLang's scheduler, cache, sampler, model or HTTP code is replaced.

1. sgl_kernel: there is no CPU build on PyPI. SGLang 0.5.16 and later import names from it at module level
   (speculative decoding, page moves) that a plain server never calls. They can be imported; a call raises.
2. HiCache with ``--hicache-io-backend direct``: the copy between device and host pool,
   sgl_kernel.kvcacheio.transfer_kv_direct, is done by torch indexing, and host memory is not pinned.
3. HiCache's page hashes: SGLang compiles them at first use, with ninja and OpenSSL's headers, which a bare
   machine lacks. The same hash by hashlib; the tree's own, in its Rust, must agree for a page to be found.
4. Several ranks: torch's CUDA build brings NCCL, which SGLang would use if it can be loaded; without it the
   ranks talk over gloo.
"""

import hashlib
import os
import sys
import types
from array import array
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
# OpenMP's spinning stalls decode when another process wants the core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_NCCL_SO_PATH", "/nonexistent/libnccl.so")

import torch


def _kernel_name(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no build for this CPU")

    return missing


_kernels = types.ModuleType("sgl_kernel")
_kernels.__getattr__ = _kernel_name  # type: ignore[method-assign]
sys.modules["sgl_kernel"] = _kernels


def _get_hash(
    tokens: Any, length: int, width: int, is_bigram: bool, before: bytes | None, page_size: int | None = None
) -> str | list[str]:
    """hash_binding.cpp's get_hash for tokens of 32 bits. The last page may be short."""
    if width != 1 or is_bigram:
        raise NotImplementedError("pages of bigrams or tuples have no hash here")
    words = array("I", tokens[:length]).tobytes()
    step = len(words) if page_size is None else 4 * page_size
    hashes, digest = [], before or b""
    for start in range(0, len(words), step):
        digest = hashlib.sha256(digest + words[start : start + step]).digest()
        hashes.append(digest.hex())
    return hashes if page_size is not None else hashes[0]


def _bridge_hicache() -> None:
    from sglang.srt.mem_cache.cpp_utils import native_hash
    from sglang.srt.mem_cache.pool_host import common, mha

    def transfer_kv_direct(
        src_layers: list[torch.Tensor],
        dst_layers: list[torch.Tensor],
        src_indices: torch.Tensor,
        dst_indices: torch.Tensor,
        page_size: int,
    ) -> None:
        source, target = src_indices.to("cpu", torch.long), dst_indices.to("cpu", torch.long)
        for src, dst in zip(src_layers, dst_layers, strict=True):
            dst[target] = src[source]

    common.ALLOC_MEMORY_FUNCS["cpu"] = common.alloc_with_pin_memory
    mha.MHATokenToKVPoolHost.pin_memory = property(lambda self: False, lambda self, value: None)
    mha.transfer_kv_direct = transfer_kv_direct
    native_hash._load_native_hash_module = lambda: types.SimpleNamespace(get_hash=_get_hash)


if __name__ == "__mp_main__" and "--enable-hierarchical-cache" in sys.argv:
    _bridge_hicache()

if __name__ == "__main__":
    import runpy

    runpy.run_module("sglang.launch_server", run_name="__main__")
