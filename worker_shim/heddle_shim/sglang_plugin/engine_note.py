"""A note from the engine to its shim, in the page store: which pages it makes and takes now.

Written whole by rank 0's HiCache class at its start and at each change of weights; read by the shim.
"""

from pathlib import Path

from heddle_contracts.kv import KvNamespace
from pydantic import BaseModel, ConfigDict, ValidationError

FILE = "engine.json"


class EngineNote(BaseModel):
    """``base_version`` is the engine's own name of its weights; the namespace's adds a count where updates
    brought no new name.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    base_version: str
    namespace: KvNamespace


def write_note(root: Path, note: EngineNote) -> None:
    staged = root / f".{FILE}.{note.pid}"
    staged.write_text(note.model_dump_json())
    staged.replace(root / FILE)


def read_note(root: Path) -> EngineNote | None:
    """None while there is none that can be read."""
    try:
        return EngineNote.model_validate_json((root / FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def remove_note(root: Path) -> None:
    """Before an engine is started: what an earlier one said is over."""
    (root / FILE).unlink(missing_ok=True)
