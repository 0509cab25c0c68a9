"""How long a trajectory still is: predicted at its start and again in every tool gap, with a spread.

    records or step records ─▶ `observations` ─▶ `features` ─▶ a `protocol.Predictor` ─▶ mean, sigma,
    quantiles

One path from what was observed to features serves training and serving alike. Nothing here knows the gateway.
"""
