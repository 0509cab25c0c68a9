"""HTTP routes: the data path, operations, the admin API, and the registries that RL frameworks call."""
