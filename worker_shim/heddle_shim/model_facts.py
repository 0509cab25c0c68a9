"""What is known of a model before it is loaded: a fingerprint, equal on all hosts, and its KV heads."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Of each file of weights: two checkpoints of one training have files of the same sizes."""

MADE_OTHERWISE = (
    "--quantization",
    "--torchao-config",
    "--modelopt-quant",
    "--rl-quant-profile",
)
MADE_OTHERWISE_JSON = ("--json-model-override-args", "--model-loader-extra-config")
MADE_OTHERWISE_FILES = (
    "--quantization-param-path",
    "--decrypted-config-file",
    "--modelopt-checkpoint-restore-path",
)
"""SGLang's options by which the same files make a model whose KV is another: by value, by value as JSON, by
what the file holds. Source: SGLang 0.5.23, ``arg_groups/fields/model.py``.
"""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``kv_heads`` is None where the config does not say, or the name is no folder here."""

    fingerprint: str
    kv_heads: int | None


def model_facts(model_path: str, options: Mapping[str, str | None] = MappingProxyType({})) -> ModelFacts:
    """Of a folder: its config, and of its weights the names, sizes and samples, so that no path of a host is
    in it. Of a name on a hub: the name and revision. Of both: those of SGLang's ``options`` that change the
    model.

    Raises:
        OSError, ValueError: the folder cannot be read.
    """
    folder = Path(model_path)
    digest = hashlib.sha256()
    for name, value in _changes(options):
        digest.update(f"{name}\0{value}\0".encode())
    config_file = folder / "config.json"
    if not config_file.is_file():
        digest.update(f"hub\0{model_path}\0{options.get('--revision') or ''}".encode())
        return ModelFacts(digest.hexdigest()[:32], None)
    config: dict[str, Any] = json.loads(config_file.read_bytes())
    digest.update(json.dumps(config, sort_keys=True).encode())
    weights = {path for pattern in WEIGHTS for path in folder.glob(pattern)}
    for path in sorted(weights):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}".encode())
        with path.open("rb") as file:
            for index in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * index // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return ModelFacts(digest.hexdigest()[:32], _kv_heads(config))


def _changes(options: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
    if options.get("--load-format") == "dummy":
        yield "--load-format", "dummy"
    for name in MADE_OTHERWISE:
        if name in options:
            yield name, options[name]
    for name in MADE_OTHERWISE_JSON:
        if (text := options.get(name)) is not None:
            try:
                text = json.dumps(json.loads(text), sort_keys=True)
            except ValueError:
                pass  # SGLang will say so.
            if text != "{}":
                yield name, text
    for name in MADE_OTHERWISE_FILES:
        if (text := options.get(name)) is not None:
            file = Path(text)
            yield name, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else text


def _kv_heads(config: Mapping[str, Any]) -> int | None:
    for part in (config, config.get("text_config") or {}):
        for name in ("num_key_value_heads", "num_attention_heads"):
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
