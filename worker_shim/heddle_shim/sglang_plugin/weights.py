"""Which weights this engine process has now, by name; HiCache's class and the plugin share it.

SGLang's own version changes only where an update names a new one. Weights of an update that names none get a
mark of what they are beside it: ``default+3f5c...``. So equal names mean equal weights, in all workers and in
all lives of an engine, however many updates each of them has seen.

Pages move in background threads. From the beginning of an update to its end none may be stored or found,
else pages of the old weights could get the new name. What lies within another update, as the parts of one
between SGLang's ``begin_weight_update`` and ``end_weight_update``, belongs to that one.
"""

import threading
from collections.abc import Callable


class LiveWeights:
    """One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updating = 0
        self._changed = False
        self._base: str | None = None
        self._mark: str | None = None
        self.on_update: list[Callable[[], object]] = []
        """Called at the end of each update, in the scheduler's thread."""

    def begin_update(self, version: str) -> None:
        """``version``: the engine's name of its weights before it."""
        with self._lock:
            if not self._updating:
                self._settle(version)
                self._changed = False
            self._updating += 1

    def end_update(self, version: str, *, changed: bool, mark: Callable[[], str]) -> None:
        """``version``: the engine's name of its weights now; ``changed``: whether the weights did. ``mark``
        is asked where they did and their name did not: equal for equal weights only.
        """
        with self._lock:
            self._changed |= changed
            outermost = self._updating == 1
            nameless = outermost and self._changed and version == self._base
        # It may look at all weights; who asks for the name meanwhile is told that there is none.
        found = mark() if nameless else None
        with self._lock:
            self._updating -= 1
            if not outermost:
                return
            if nameless:
                self._mark = found
            else:
                self._settle(version)
        for hear in self.on_update:
            hear()

    def name(self, version: str) -> str | None:
        """The name of the weights, where ``version`` is the engine's own; None in the middle of an update."""
        with self._lock:
            if self._updating:
                return None
            self._settle(version)
            return version if self._mark is None else f"{version}+{self._mark}"

    def _settle(self, version: str) -> None:
        if version != self._base:
            self._base, self._mark = version, None


LIVE = LiveWeights()
