"""Finds and reads a worker profile: a packaged name, a file, or the JSON itself.

Invariant: what comes back is valid; whatever is wrong is said with the file, the field and what is wanted
there.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from heddle_contracts.worker_profile import WorkerProfile
from pydantic import ValidationError

_PACKAGED = resources.files("heddle_planner.profiles") / "packaged"


class ProfileError(ValueError):
    """A profile that cannot be found or does not fit the format."""


def packaged_names() -> list[str]:
    """Names of the profiles that come with Heddle, such as ``qwen3-8b-h100``."""
    return sorted(
        entry.name.removesuffix(".json") for entry in _PACKAGED.iterdir() if entry.name.endswith(".json")
    )


def load_profile(spec: str) -> WorkerProfile:
    """Reads ``spec``: JSON if it starts with ``{``, else a file if there is one, else a packaged name.

    Raises ProfileError.
    """
    if spec.lstrip().startswith("{"):
        return parse_profile(spec, where="--profile")
    path = Path(spec)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{spec}: cannot be read: {error}") from error
        return parse_profile(text, where=spec)
    if spec in packaged_names():
        return parse_profile((_PACKAGED / f"{spec}.json").read_text(encoding="utf-8"), where=spec)
    raise ProfileError(
        f"{spec}: no such file, and no packaged profile of that name; packaged are"
        f" {', '.join(packaged_names())}"
    )


def parse_profile(text: str, *, where: str) -> WorkerProfile:
    """Validates the JSON of a profile, full or short form. ``where`` names it in errors."""
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(f"{where}: must be a JSON object with the field 'degrees'")
    try:
        return WorkerProfile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(f"{where}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """The first fault as ``field path: message``, without the tag of the form a degree is in."""
    fault = error.errors(include_url=False)[0]
    location = [str(part) for part in fault["loc"]]
    if location[:1] == ["degrees"]:
        del location[2:3]
    message = fault["msg"].removeprefix("Value error, ")
    return f"field {'.'.join(location)}: {message}"
