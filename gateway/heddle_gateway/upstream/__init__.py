"""Bytes to the workers and back: connections, pools, headers, aborts."""
