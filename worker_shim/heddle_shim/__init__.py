"""Beside each engine: telemetry, KV migration, launch; and the emulated engine."""
