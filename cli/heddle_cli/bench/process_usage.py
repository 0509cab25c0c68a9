"""Memory and CPU time of a process and its descendants, from /proc (Linux)."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MIB = 1024.0


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu_s`: user and system time so far. `peak_mib`: highest resident set, added up over the processes."""

    cpu_s: float
    peak_mib: float


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: a command's name may hold blanks and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def descendants(root: int) -> list[int]:
    """`root` and every living process below it."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(_stat_fields(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended while we looked
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def usage(root: int) -> Usage:
    """What the tree under `root` has used so far; processes that ended since are not in it."""
    cpu_s, peak_mib = 0.0, 0.0
    for pid in descendants(root):
        try:
            fields = _stat_fields(pid)
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        peak_mib += sum(int(kib) for kib in peaks) / _MIB
    return Usage(cpu_s, peak_mib)
