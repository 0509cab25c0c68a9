"""deploy/Dockerfile as its stages say it."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"


@dataclass
class Target:
    """One stage of the Dockerfile: what its instructions say."""

    parent: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, name: str) -> str | None:
        return next((text for found, text in reversed(self.instructions) if found == name), None)

    def words(self, name: str) -> list[str]:
        """Of an instruction in its JSON form; none where there is none."""
        found: list[str] = json.loads(self.last(name) or "[]")
        return found


def targets() -> dict[str, Target]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    found: dict[str, Target] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            image, _, alias = rest.partition(" AS ")
            stage = found[alias] = Target(image)
            if image in found:
                stage.instructions += found[image].instructions
        else:
            stage.instructions.append((name, rest.strip()))
    return found
