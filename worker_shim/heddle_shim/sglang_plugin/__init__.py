"""What runs inside SGLang's own processes: the page store behind its HiCache, and a plugin.

The only part of Heddle that imports SGLang. It is found by SGLang through ``PYTHONPATH`` or an installed
distribution, and imports nothing of Heddle but the contracts and the page store.
"""
