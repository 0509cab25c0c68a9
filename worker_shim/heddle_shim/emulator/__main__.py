"""``python -m heddle_shim.emulator``."""

from heddle_shim.emulator.cli import app

if __name__ == "__main__":
    app()
