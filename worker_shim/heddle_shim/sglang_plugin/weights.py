"""Which weights this engine process has now, by name; HiCache's class and the plugin share it.

SGLang's own version changes only where an update names a new one. An update that names none gets a count:
``default+1``. Two workers that got the same updates have the same name.

Pages move in background threads. From the beginning of an update to its end none may be stored or found,
else pages of the old weights could get the new name.
"""

import threading
from collections.abc import Callable


class LiveWeights:
    """One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updating = 0
        self._base: str | None = None
        self._unnamed = 0
        self.on_update: list[Callable[[], object]] = []
        """Called at the end of each update, in the scheduler's thread."""

    def begin_update(self) -> None:
        with self._lock:
            self._updating += 1

    def end_update(self, version: str, *, changed: bool) -> None:
        """``version``: the engine's name of its weights now; ``changed``: whether the weights did."""
        with self._lock:
            self._updating -= 1
            if changed and version == self._base:
                self._unnamed += 1
            self._settle(version)
        for hear in self.on_update:
            hear()

    def name(self, version: str) -> str | None:
        """The name of the weights, where ``version`` is the engine's own; None in the middle of an update."""
        with self._lock:
            if self._updating:
                return None
            self._settle(version)
            return f"{version}+{self._unnamed}" if self._unnamed else version

    def _settle(self, version: str) -> None:
        if version != self._base:
            self._base, self._unnamed = version, 0


LIVE = LiveWeights()
