"""What the figures were taken on, as far as it explains them."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: those this process may use. `load`: load average over the minute before the run."""

    cores: int
    cpu: str
    memory_gib: float
    system: str
    load: float


def _field(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def describe() -> Machine:
    """Of the machine this runs on (Linux)."""
    memory_kib = int(_field("/proc/meminfo", "MemTotal").split()[0])
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_field("/proc/cpuinfo", "model name"),
        memory_gib=round(memory_kib / 2**20, 1),
        system=f"{platform.system()} {platform.release()}",
        load=os.getloadavg()[0],
    )
