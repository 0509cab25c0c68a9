"""The decision core, driven live: which trajectories there are, what each step may do now, one real timer."""
