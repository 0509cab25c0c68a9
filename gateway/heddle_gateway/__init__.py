"""The OpenAI-compatible gateway that knows trajectories."""
