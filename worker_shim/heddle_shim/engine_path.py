"""Makes Heddle importable in the engine's own environment, which may be another one than the shim's.

A folder with links to the two packages that the engine's side needs, and the plugin's entry point as the
metadata of a distribution; it goes first into the engine's ``PYTHONPATH``.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Final

import heddle_contracts

import heddle_shim
from heddle_shim.sglang_plugin.plugin import STORE_VARIABLE

HEADER_OVERRIDES: Final = "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"
"""Lets the gateway name a request and give it its priority where the body has no field for them
(/v1/messages).
"""
PLUGIN_GROUP: Final = "sglang.srt.plugins"
ENTRY_POINT: Final = f"[{PLUGIN_GROUP}]\nheddle = heddle_shim.sglang_plugin.plugin:register\n"


def make_engine_path(folder: Path) -> Path:
    """Makes the folder new below ``folder``; returns what to put into ``PYTHONPATH``."""
    path = folder / "engine_path"
    path.mkdir(mode=0o700, exist_ok=True)
    for package in (heddle_contracts, heddle_shim):
        link = path / package.__name__
        link.unlink(missing_ok=True)
        link.symlink_to(Path(str(package.__file__)).parent, target_is_directory=True)
    metadata = path / "heddle_engine_side-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: heddle-engine-side\nVersion: {version('heddle-shim')}\n"
    )
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    return path


def engine_environment(base: dict[str, str], store: Path | None, path: Path | None) -> dict[str, str]:
    """The engine's environment: the shim's, with the plugin switched on where there is a store."""
    environment = {name: value for name, value in base.items() if not name.startswith("HEDDLE_")}
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault(HEADER_OVERRIDES, "1")
    if store is not None and path is not None:
        environment[STORE_VARIABLE] = str(store)
        others = base.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{path}:{others}" if others else str(path)
    return environment
