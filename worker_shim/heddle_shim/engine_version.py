"""Which SGLang a launch command would start, and what Heddle asks of a release."""

import logging
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

Version = tuple[int, ...]

OLDEST_FOR_KV: Final[Version] = (0, 5, 23)
"""The HiCache interface and the page hashes were read from this release; another may name pages otherwise."""
ASK_S: Final = 60.0
PROGRAM: Final = "from importlib.metadata import version; print(version('sglang'))"


def parse_version(text: object) -> Version:
    """The release's numbers: (0, 5, 15) of "0.5.15.post1"; (0,) where there are none."""
    numbers = []
    for part in str(text or "").split("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers) or (0,)


def version_of_command(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The version that this command's Python has installed; None where it is no Python, or has none."""
    if not Path(command[0]).name.startswith("python"):
        return None
    try:
        asked = subprocess.run(
            [command[0], "-c", PROGRAM],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("%s does not say which SGLang it has: %s", command[0], error)
        return None
    return asked.stdout.strip() or None
