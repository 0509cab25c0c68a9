"""Run by SGLang's Python: two ranks with unlike parts of a model share a page store. Prints what they find.

split_pages.py FOLDER NAME SIZE     NAME: the field of SGLang's storage config that splits them
"""

import json
import sys
import types
from pathlib import Path

import heddle_shim.sglang_plugin.storage as storage
import torch
from heddle_shim.transfer.page_store import PageStore
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

TOKENS, LAYERS, HEADS, DIM = 4, 2, 2, 8
KEY = "ab" * 32


class HostPool:
    """Of SGLang's, what the class asks for."""

    dtype = torch.float32
    page_size, layer_num, layout, head_num, head_dim = TOKENS, LAYERS, "layer_first", HEADS, DIM

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * LAYERS * TOKENS * HEADS * DIM)

    def get_data_page(self, index: torch.Tensor) -> torch.Tensor:
        return self.get_dummy_flat_data_page() + float(index)


def rank(root: Path, name: str, size: int, index: int) -> storage.HeddlePages:
    splits = {"pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1}
    splits |= {name: size, name.replace("size", "rank"): index}
    made = storage.HeddlePages(
        HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name="m",
            extra_config={"heddle_store": str(root), "heddle_model": "m", "heddle_kv_heads": HEADS},
            **splits,
        ),
        {},
    )
    made.register_mem_pool_host(HostPool())
    return made


def main(folder: str, name: str, size: str) -> None:
    storage.get_serving = lambda: types.SimpleNamespace(weight_version="default")
    root = Path(folder) / "store"
    store = PageStore.create(root, 1_000_000)
    first, second = (rank(root, name, int(size), index) for index in (0, int(size) - 1))
    page = HostPool().get_dummy_flat_data_page()
    stored = first.batch_set([KEY], [torch.full_like(page, 1.0)])
    [found] = second.batch_get([KEY], [page])
    print(json.dumps({"stored": stored, "exists": second.exists(KEY), "found": found is not None}))
    first.clear()
    gone = first.exists(KEY)
    print(
        json.dumps({"gone": not gone, "stored": first.batch_set([KEY], [page]), "exists": first.exists(KEY)})
    )
    for one in (first, second):
        one.close()
    store.close(remove=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
