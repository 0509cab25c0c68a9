"""The core's policy: a core made under one, and a change laid over the one in force."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from heddle_core import Core

_TYPES: Final = (
    (r"expected [ui](8|16|32|64)$", "expected a whole number"),
    (r"expected f64$", "expected a number"),
    (r"floating point `([^`]*)`", r"number \1"),
    (r"integer `([^`]*)`", r"number \1"),
    (r"boolean `([^`]*)`", r"\1"),
)


class PolicyRefused(ValueError):
    """The core does not take this policy; the message names the field and what it may be, without the names
    of Rust's types.
    """

    def __init__(self, said: str) -> None:
        for rust, plain in _TYPES:
            said = re.sub(rust, plain, said)
        super().__init__(said)


def new_core(policy: Mapping[str, Any], *, journal: bool) -> Core:
    """Raises PolicyRefused. Fields that ``policy`` leaves out have the core's defaults."""
    try:
        return Core(json.dumps(policy) if policy else None, journal=journal)
    except ValueError as error:
        raise PolicyRefused(str(error)) from error


def laid_over(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the fields of ``change``; objects inside are merged the same way."""
    merged = dict(base)
    for name, value in change.items():
        below = merged.get(name)
        merged[name] = (
            laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return merged
