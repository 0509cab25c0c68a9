"""The native pass over request and answer bytes, as the data path uses it.

``scan_body`` reads a request, ``splice`` sets rid, priority and include_usage in it, ``StreamTap`` and
``read_answer`` read answers. None of them re-serialises anything; see router_rs/crates/wire.
"""

from heddle_core import Answer, Scan, StreamTap, read_answer, scan_body, splice

__all__ = ["Answer", "Scan", "StreamTap", "read_answer", "scan_body", "splice"]
