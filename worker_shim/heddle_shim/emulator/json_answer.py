"""JSON text that fits a schema and leaves one string open, so that an answer can be padded to a token count.

Covers what tool parameters and response formats use: object, array, string, number, integer, boolean, null,
enum, const, anyOf/oneOf/allOf, $ref into the same schema, required, minItems, minLength/maxLength,
minimum/maximum.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_OPEN: Final = "zqopenqz"
"""Stands where the padding goes; never a pseudo-word, which alternate consonants and vowels."""
_MAX_DEPTH: Final = 16


class SchemaError(ValueError):
    """A schema this module cannot answer."""


@dataclass(frozen=True, slots=True)
class JsonFrame:
    """``head + padding + tail`` is valid JSON for any padding that needs no escapes; no padding if ``tail``
    is None.
    """

    head: str
    tail: str | None


def frame_for(schema: Mapping[str, Any] | None) -> JsonFrame:
    """Smallest JSON that fits, with its first unconstrained string left open. Without a schema, one object.

    Raises:
        SchemaError: an unresolved $ref, or nesting beyond any sensible depth.
    """
    if schema is None:
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    value = _Filler(schema).value(schema, 0)
    text = json.dumps(value, separators=(", ", ": "))
    head, found, tail = text.partition(_OPEN)
    return JsonFrame(head, tail if found else None)


class _Filler:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._opened = False

    def value(self, schema: object, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise SchemaError("schema: nested too deeply")
        if not isinstance(schema, Mapping):
            return {}  # true, or no schema: anything fits.
        if "const" in schema:
            return schema["const"]
        if choices := schema.get("enum"):
            return choices[0]
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._resolve(reference), depth + 1)
        if parts := schema.get("allOf"):
            return self.value(_merged(schema, [self._plain(part) for part in parts]), depth + 1)
        for word in ("anyOf", "oneOf"):
            if options := schema.get(word):
                return self.value(options[0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        if kind == "array":
            return [self.value(schema.get("items"), depth + 1) for _ in range(int(schema.get("minItems", 0)))]
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        if kind == "boolean":
            return True
        if kind == "null":
            return None
        if kind is None:
            return {}
        return self._string(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = list(schema.get("required") or ())
        if not required:
            # A model calls a tool with arguments even where none is required.
            required = list(properties)[:1]
        return {name: self.value(properties.get(name), depth + 1) for name in required}

    def _string(self, schema: Mapping[str, Any]) -> str:
        free = not any(word in schema for word in ("format", "pattern", "maxLength"))
        if free and not self._opened:
            self._opened = True
            return _OPEN
        if sample := _FORMATS.get(str(schema.get("format"))):
            return sample
        least = int(schema.get("minLength", 0))
        return "a" * max(least, min(1, int(schema.get("maxLength", 1))))

    def _plain(self, part: object) -> Mapping[str, Any]:
        if isinstance(part, Mapping) and isinstance(reference := part.get("$ref"), str):
            return self._resolve(reference)
        return part if isinstance(part, Mapping) else {}

    def _resolve(self, reference: str) -> Mapping[str, Any]:
        target: Any = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            if step:
                target = target.get(step) if isinstance(target, Mapping) else None
        if not reference.startswith("#") or not isinstance(target, Mapping):
            raise SchemaError(f"schema: cannot resolve $ref {reference}")
        return target


_FORMATS: Final = {
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "date-time": "2026-01-01T00:00:00Z",
    "email": "a@example.com",
    "uri": "http://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _number(schema: Mapping[str, Any], *, whole: bool) -> float | int:
    low = schema.get("minimum")
    if low is None and (above := schema.get("exclusiveMinimum")) is not None:
        low = above + 1
    high = schema.get("maximum")
    if high is None and (below := schema.get("exclusiveMaximum")) is not None:
        high = below - 1
    value = low if low is not None else min(1, high) if high is not None else 1
    return int(value) if whole else value


def _merged(schema: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    merged["properties"] = dict(merged.get("properties") or {})
    merged["required"] = list(merged.get("required") or ())
    for part in parts:
        for key, value in part.items():
            if key == "properties":
                merged["properties"].update(value)
            elif key == "required":
                merged["required"] += [name for name in value if name not in merged["required"]]
            else:
                merged.setdefault(key, value)
    if not merged["properties"]:
        del merged["properties"]
    return merged
