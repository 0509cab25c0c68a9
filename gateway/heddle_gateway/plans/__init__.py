"""Plans: which there are, which is in force on the live workers, and why; rollouts that are announced."""
