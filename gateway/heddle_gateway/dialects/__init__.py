"""How each API family looks: its path at the worker, its errors, the error event of its streams."""
