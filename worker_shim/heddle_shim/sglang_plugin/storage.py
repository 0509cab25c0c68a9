"""SGLang's ``dynamic`` HiCache backend over the shim's page store.

Named to SGLang by ``--hicache-storage-backend dynamic`` and the extra config that
``heddle_shim.engine_flags`` writes. Source of the interface: SGLang 0.5.23, ``mem_cache/hicache_storage.py``.

One instance a scheduler rank; its methods are called from SGLang's storage threads, never from the loop that
schedules. A page that cannot be stored or found is a miss: the engine then computes it.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch
from heddle_contracts.kv import Attention, KvLayout, KvNamespace, PageOrder
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.runtime_context import get_serving

from heddle_shim.sglang_plugin.engine_note import EngineNote, write_note
from heddle_shim.sglang_plugin.weights import LIVE
from heddle_shim.transfer.page_shelf import PageShelf
from heddle_shim.transfer.page_store import PageStore

log = logging.getLogger(__name__)


class HeddlePages(HiCacheStorage):  # type: ignore[misc]
    """Keys are SGLang's page hashes; this rank's part of each page is stored under them."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any]) -> None:
        self._config = storage_config
        self._extra: dict[str, Any] = storage_config.extra_config or {}
        self._store = PageStore.attach(Path(self._extra["heddle_store"]))
        self._layout: KvLayout | None = None
        self._unfit = split_otherwise(storage_config)
        self._part = 0
        self._shelf: PageShelf | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if self._unfit:
            log.warning("heddle: no KV is stored, %s: pages are told apart by TP rank alone", self._unfit)
            return
        self._layout = layout_of(mem_pool_host, self._config, self._extra.get("heddle_kv_heads"))
        self._part = self._layout.part_of(self._config.tp_rank)
        expected = mem_pool_host.get_dummy_flat_data_page().nbytes
        if self._layout.rank_page_bytes != expected:
            raise ValueError(
                f"a page of this engine has {expected} bytes, its description {self._layout.rank_page_bytes};"
                " start it without --hicache-storage-backend dynamic"
            )
        self._current()
        # The shim learns the new name at once, not with the next page.
        LIVE.on_update.append(self._current)

    # ---------------------------------------------------------------- called by SGLang's storage threads

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many of the first keys are there, without a hole."""
        shelf = self._current()
        return 0 if shelf is None else shelf.prefix(keys, [self._part])

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Fills the flat pages given; None in the place of one that is not there."""
        shelf = self._current()
        if shelf is None:
            return [None] * len(keys)
        pages = [
            page if shelf.read_into(key, self._part, _bytes_of(page)) else None
            for key, page in zip(keys, target_locations, strict=True)
        ]
        shelf.touch(keys, [self._part])
        return pages

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """False where a page found no room."""
        shelf = self._current()
        if shelf is None:
            return False
        stored = [shelf.put(key, self._part, _bytes_of(page)) for key, page in zip(keys, values, strict=True)]
        return all(stored)

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fills the pages of the host pool that begin at every ``page_size``-th of ``host_indices``; True for
        those that are there.
        """
        pool = self.mem_pool_host
        pages = self.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
        for index, page in enumerate(pages):
            if page is not None:
                pool.set_from_flat_data_page(host_indices[index * pool.page_size], page)
        self._used(extra_info, keys)
        return [page is not None for page in pages]

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores such pages; False for one that found no room."""
        shelf, pool = self._current(), self.mem_pool_host
        if shelf is None:
            return [False] * len(keys)
        pages = [pool.get_data_page(host_indices[index * pool.page_size]) for index in range(len(keys))]
        stored = [shelf.put(key, self._part, _bytes_of(page)) for key, page in zip(keys, pages, strict=True)]
        self._used(extra_info, keys)
        return stored

    def _used(self, extra_info: Any, keys: list[str]) -> None:
        """The whole prefix is: SGLang reads and writes only its end, and without its start it is worth
        nothing.
        """
        shelf = self._current()
        if shelf is not None:
            before = getattr(extra_info, "prefix_keys", None) or []
            shelf.touch([*before, *keys], [self._part])

    def clear(self) -> None:
        shelf = self._current()
        if shelf is not None:
            self._store.drop(shelf.namespace)

    def close(self) -> None:
        if self._current in LIVE.on_update:
            LIVE.on_update.remove(self._current)
        self._store.close()

    # ---------------------------------------------------------------- which pages

    def _current(self) -> PageShelf | None:
        """The shelf of the weights that run now; None while they change."""
        base = str(get_serving().weight_version)
        version = LIVE.name(base)
        if version is None or self._layout is None:
            return None
        shelf = self._shelf
        if shelf is None or shelf.namespace.weight_version != version:
            namespace = KvNamespace(
                model=self._extra["heddle_model"], weight_version=version, layout=self._layout
            )
            shelf = self._shelf = self._store.shelf(namespace)
            if self._config.tp_rank == 0:
                self._store.set_weight_version(version)
                write_note(
                    self._store.root, EngineNote(pid=os.getpid(), base_version=base, namespace=namespace)
                )
        return shelf


def split_otherwise(config: HiCacheStorageConfig) -> str:
    """By what else than TP a page's KV is split over ranks, each of which would store its own under the same
    name; empty where by nothing.
    """
    sizes = {name: getattr(config, name, 1) for name in ("pp_size", "attn_cp_size", "dcp_size")}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if (size or 1) > 1)


def layout_of(pool: Any, config: HiCacheStorageConfig, kv_heads: int | None) -> KvLayout:
    """The page of an engine's host pool.

    ``kv_heads`` of the whole model; without it the ranks' heads are taken to be all different ones.
    """
    common = {
        "dtype": str(pool.dtype).removeprefix("torch."),
        "item_bytes": pool.dtype.itemsize,
        "page_size": pool.page_size,
        "layers": pool.layer_num,
        "tp_size": config.tp_size,
        "order": PageOrder(pool.layout),
    }
    if config.is_mla_model:
        return KvLayout(attention=Attention.MLA, kv_heads=1, head_dim=pool.kv_cache_dim, **common)
    return KvLayout(kv_heads=kv_heads or pool.head_num * config.tp_size, head_dim=pool.head_dim, **common)


def _bytes_of(page: torch.Tensor) -> memoryview:
    """The memory of a flat page on the host."""
    return memoryview(page.contiguous().view(torch.uint8).numpy())
