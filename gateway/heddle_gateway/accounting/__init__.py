"""One ending per step: what a step may go through, and the record that is left of it."""
