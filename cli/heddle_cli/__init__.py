"""The heddle command: one entry point, sub-commands found by entry points of the installed parts."""
