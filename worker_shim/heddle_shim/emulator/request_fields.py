"""Reading fields of a JSON body: absent and null mean the default, a wrong type is a 400 that names the
field.
"""

from collections.abc import Mapping
from typing import Any

from heddle_shim.emulator.errors import ApiError

Body = Mapping[str, Any]


def integer(body: Body, name: str, default: int, *, low: int, high: int | None = None) -> int:
    """An integer in [low, high]."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ApiError(f"{name}: must be an integer")
    if value < low or (high is not None and value > high):
        raise ApiError(
            f"{name}: must be at least {low}" + (f" and at most {high}" if high is not None else "")
        )
    return value


def optional_integer(body: Body, name: str) -> int | None:
    """A signed 64-bit integer or None."""
    if body.get(name) is None:
        return None
    return integer(body, name, 0, low=-(2**63), high=2**63 - 1)


def number(body: Body, name: str, default: float, *, low: float) -> float:
    """A number of at least ``low``."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or value < low:
        raise ApiError(f"{name}: must be a number of at least {low}")
    return float(value)


def flag(body: Body, name: str, default: bool) -> bool:
    """A boolean."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(f"{name}: must be true or false")
    return value


def text(body: Body, name: str, default: str | None = None) -> str | None:
    """A string or None."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ApiError(f"{name}: must be a string")
    return value


def texts(body: Body, name: str) -> tuple[str, ...]:
    """A string or a list of strings."""
    value = body.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ApiError(f"{name}: must be a string or a list of strings")
    return tuple(value)


def mapping(body: Body, name: str) -> Body:
    """An object, empty by default."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(f"{name}: must be an object")
    return value
