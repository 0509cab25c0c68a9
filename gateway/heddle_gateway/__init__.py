"""The OpenAI-compatible gateway that knows trajectories."""

from typing import Final

__version__: Final = "0.1.0"
