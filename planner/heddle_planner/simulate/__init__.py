"""Rollouts on modelled clusters: what a policy costs before a GPU is touched.

``scripts`` are what agents ask for, from ``records`` or made by ``domains``; ``fleet`` is what workers
truly are; ``policies`` names what is compared; ``comparison`` runs it through ``heddle_core.simulate``,
which is the gateway's own core on a modelled cluster; ``cli`` is ``heddle simulate`` (one rollout),
``grid_cli`` is ``heddle compare`` (many of them in one table), ``paper_grid_cli`` is ``heddle grid`` (the
paper's own table).
"""
