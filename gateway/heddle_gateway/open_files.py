"""How many files (sockets are files) this process may have open, and how a lack of them is told.

Each step takes two: the client's connection and the worker's. A lack is the gateway's own: it says nothing of
the server that was to be called.
"""

import errno
import logging
import os
import resource
from typing import Final

log = logging.getLogger(__name__)

# Shells and services start with 1024 at most of what they may have.
ENOUGH: Final = 8192
# Of a limit without end; the kernel's own table is no larger by default.
MOST: Final = 1024 * 1024
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
_WORDS: Final = tuple(os.strerror(number) for number in _OUT_OF_FILES)


def raise_limit() -> int:
    """To what the system lets this process have. Returns the limit; says so where it is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (ValueError, OSError) as error:  # macOS: less than its own "unlimited"
            log.warning("the limit of open files stays at %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH:
        log.warning("at most %d open files (ulimit -Hn): enough for %d steps at once", soft, soft // 2)
    return soft


def is_lack_of_files(error: BaseException) -> bool:
    """Whether this, or what it was raised from, is the lack of a file of ours. Of several addresses tried in
    vain the event loop keeps the words alone.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            return any(is_lack_of_files(one) for one in seen.exceptions)
        if isinstance(seen, OSError) and (
            seen.errno in _OUT_OF_FILES or (seen.errno is None and any(word in str(seen) for word in _WORDS))
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
