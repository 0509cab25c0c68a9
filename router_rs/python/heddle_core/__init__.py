"""Heddle's decision core (``Core``, ``replay``) and byte-path parsing (``scan_body``, ``splice``, ``StreamTap``)."""

import warnings

from heddle_core import _native
from heddle_core._native import *  # noqa: F403

if _native.DEBUG_BUILD:
    warnings.warn("heddle_core was built for debug and is slow; run `make install`", RuntimeWarning, stacklevel=2)
