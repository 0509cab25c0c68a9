"""Memory and CPU time of process trees."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from heddle_cli.bench.process_usage import descendants, usage

# A parent that starts a child; the child takes memory, gives it back and burns half a second, then both wait.
TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import sys, time
block = bytearray(60 * 1024 * 1024)
for at in range(0, len(block), 4096):
    block[at] = 1
del block
while time.process_time() < 0.5:
    pass
print("worked", flush=True)
sys.stdin.read()
'''], stdin=sys.stdin)
child.wait()
"""


@contextmanager
def tree() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"worked\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def test_a_childs_work_counts_for_its_parent() -> None:
    with tree() as parent:
        seen = usage(parent)
        assert len(descendants(parent)) == 2
    assert 0.45 <= seen.cpu_s < 5.0


def test_the_peak_is_seen_after_memory_was_given_back() -> None:
    with tree() as parent:
        peak = usage(parent).peak_mib
    assert 60.0 < peak < 200.0


def test_a_process_that_ended_uses_nothing() -> None:
    with tree() as parent:
        pass
    assert usage(parent).peak_mib == 0.0
