"""What a model's folder says of it: a fingerprint that is equal on all hosts, and its KV heads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``kv_heads`` is None where the config does not say, or the name is no folder here."""

    fingerprint: str
    kv_heads: int | None


def model_facts(model_path: str, revision: str | None = None) -> ModelFacts:
    """Of a folder: its config and the names and sizes of its weights, so that no path of a host is in it. Of
    a name on a hub: the name and revision.
    """
    folder = Path(model_path)
    digest = hashlib.sha256()
    config_file = folder / "config.json"
    if not config_file.is_file():
        digest.update(f"hub\0{model_path}\0{revision or ''}".encode())
        return ModelFacts(digest.hexdigest()[:32], None)
    config: dict[str, Any] = json.loads(config_file.read_bytes())
    digest.update(json.dumps(config, sort_keys=True).encode())
    weights = {path for pattern in WEIGHTS for path in folder.glob(pattern)}
    for path in sorted(weights):
        digest.update(f"\0{path.name}\0{path.stat().st_size}".encode())
    return ModelFacts(digest.hexdigest()[:32], _kv_heads(config))


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    for part in (config, config.get("text_config") or {}):
        for name in ("num_key_value_heads", "num_attention_heads"):
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
