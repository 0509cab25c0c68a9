"""The command line of an engine that a shim launches: the user's own options, and what Heddle needs besides.

An option that the user gave stays as it is, unless Heddle cannot work with it; then it is refused by name.
Source of the options: SGLang 0.5.23, ``arg_groups/fields/``; of what excludes what: ``validation_hook.py``.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle_shim.engine_version import OLDEST_FOR_KV, Version

PLUGIN_MODULE = "heddle_shim.sglang_plugin.storage"
PLUGIN_CLASS = "HeddlePages"

DEFAULT_PAGE_SIZE = 64
SPLITS = (
    ("--pp-size", "--pipeline-parallel-size"),
    ("--attn-cp-size", "--attention-context-parallel-size"),
    ("--dcp-size", "--decode-context-parallel-size"),
)
"""What splits a page's KV over ranks besides TP. Pages in the store are told apart by TP rank alone."""
ASKED_EACH_SECOND = ("/v1/loads", "/server_info", "/model_info", "/metrics", "/ping")
"""By the shim; left out of the engine's log."""


class FlagsRefused(ValueError):
    """An option that Heddle cannot work with; the message names it and the fix."""


@dataclass(frozen=True, slots=True)
class KvStore:
    """What the engine's HiCache class is told. ``kv_heads`` of the whole model, where its config says."""

    folder: Path
    model_fingerprint: str
    kv_heads: int | None
    event_port: int
    replay_port: int


class Options(Mapping[str, str | None]):
    """SGLang options as given: name with dashes to value, None for a switch."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        self._values: dict[str, str | None] = {}
        index = 0
        while index < len(arguments):
            name, has_value, value = arguments[index].partition("=")
            index += 1
            if not name.startswith("--"):
                raise FlagsRefused(f"--launch: {name!r} is not an option; write --name value")
            if not has_value and index < len(arguments) and not arguments[index].startswith("--"):
                value, has_value = arguments[index], "="
                index += 1
                while index < len(arguments) and not arguments[index].startswith("--"):
                    index += 1  # An option of several values; Heddle reads none of them.
            self._values[name.replace("_", "-")] = value if has_value else None

    @classmethod
    def parse(cls, text: str) -> "Options":
        try:
            return cls(shlex.split(text))
        except ValueError as error:
            raise FlagsRefused(f"--launch: {error}") from error

    def __getitem__(self, name: str) -> str | None:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str, default: int) -> int:
        value = self.get(name)
        try:
            return default if value is None else int(value)
        except ValueError:
            raise FlagsRefused(f"{name}: {value!r} is not a number") from None


def unstorable(options: Options) -> str | None:
    """The option by which this engine's pages cannot be stored; None where they can."""
    for names in SPLITS:
        for name in names:
            if options.number(name, 1) > 1:
                return f"{name} {options[name]}"
    return None


def engine_arguments(options: Options, store: KvStore | None, version: Version | None = None) -> list[str]:
    """All arguments of the server. Without ``store``, or where its pages are ``unstorable``, the engine's KV
    cannot be moved. ``version`` of SGLang; None is taken for one that has all options.

    Raises:
        FlagsRefused: the user's options exclude what Heddle needs.
    """
    if "--model-path" not in options and "--model" not in options:
        raise FlagsRefused("--launch: --model-path is missing")
    _refuse_conflicts(options)
    added: list[str] = []

    def default(name: str, *values: str) -> None:
        if name not in options:
            added.extend([name, *values])

    default("--enable-metrics")
    default("--enable-cache-report")
    default("--enable-priority-scheduling")
    default("--default-priority-value", "0")
    if version is None or version >= OLDEST_FOR_KV:
        default("--retraction-policy", "priority")
        default("--uvicorn-access-log-exclude-prefixes", *ASKED_EACH_SECOND)
    if store is not None and unstorable(options) is None:
        default("--page-size", str(DEFAULT_PAGE_SIZE))
        default("--enable-hierarchical-cache")
        default("--hicache-write-policy", "write_through")
        default("--hicache-storage-prefetch-policy", "wait_complete")
        default("--hicache-mem-layout", "page_first_direct")
        default("--hicache-io-backend", "direct")
        added += ["--hicache-storage-backend", "dynamic"]
        added += ["--hicache-storage-backend-extra-config", json.dumps(storage_config(options, store))]
        if "--kv-events-config" not in options:
            added += ["--kv-events-config", json.dumps(kv_events_config(store))]
    return [*options.arguments, *added]


def storage_config(options: Options, store: KvStore) -> dict[str, object]:
    """``--hicache-storage-backend-extra-config``: SGLang's own keys, and those of ``HeddlePages``."""
    config: dict[str, object] = {
        "backend_name": "heddle",
        "module_path": PLUGIN_MODULE,
        "class_name": PLUGIN_CLASS,
        # Pages come with those before them, which the class marks as used.
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        # Below this many tokens SGLang does not look into the storage; a page is its own lower bound.
        "prefetch_threshold": options.number("--page-size", DEFAULT_PAGE_SIZE),
        "heddle_store": str(store.folder),
        "heddle_model": store.model_fingerprint,
    }
    if store.kv_heads is not None:
        config["heddle_kv_heads"] = store.kv_heads
    return config


def kv_events_config(store: KvStore) -> dict[str, object]:
    return {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{store.event_port}",
        "replay_endpoint": f"tcp://*:{store.replay_port}",
        "topic": "",
    }


def _refuse_conflicts(options: Options) -> None:
    policy = options.get("--schedule-policy")
    if policy not in {None, "fcfs", "lof"}:
        raise FlagsRefused(
            f"--schedule-policy {policy}: SGLang has no priorities with it; leave it out, the gateway orders"
        )
    if "--schedule-low-priority-values-first" in options:
        raise FlagsRefused(
            "--schedule-low-priority-values-first: Heddle sends high numbers first; leave it out"
        )
    backend = options.get("--hicache-storage-backend")
    if backend is not None:
        raise FlagsRefused(
            f"--hicache-storage-backend {backend}: the shim brings its own; leave it out, or give --no-kv"
        )
    if "--disable-radix-cache" in options:
        raise FlagsRefused("--disable-radix-cache: trajectories live by their cached prefix; leave it out")
