"""Frozen models that cross a process boundary in Heddle."""
