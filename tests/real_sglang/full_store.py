"""Run by SGLang's Python: what is left of prefixes in a page store that is full. Prints it.

full_store.py FOLDER
"""

import json
import sys
import types
from pathlib import Path

import heddle_shim.sglang_plugin.storage as storage
import torch
from heddle_shim.transfer.page_file import file_size
from heddle_shim.transfer.page_store import PageStore
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from split_pages import TOKENS, HostPool, rank

ROOM = 10


def main(folder: str) -> None:
    storage.get_serving = lambda: types.SimpleNamespace(weight_version="default")
    root = Path(folder) / "store"
    store = PageStore.create(root, ROOM * file_size(HostPool().get_dummy_flat_data_page().nbytes))
    pages = rank(root, "pp_size", 1, 0)

    def step(prefix: str, first: int, last: int) -> list[str]:
        """Stores what a step made: pages ``first`` to ``last`` of a prefix. The names of all of it."""
        names = [f"{prefix}{index:063x}" for index in range(last)]
        info = HiCacheStorageExtraInfo(prefix_keys=names[:first] or None)
        pages.batch_set_v1(names[first:], torch.arange(first * TOKENS, last * TOKENS), info)
        return names

    step("a", 0, 4)
    idle = step("b", 0, 4)
    long = step("a", 4, 5)
    step("c", 0, 3)
    print(json.dumps({"long": pages.batch_exists(long), "idle": pages.batch_exists(idle)}))
    pages.close()
    store.close(remove=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
