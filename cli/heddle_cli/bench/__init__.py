"""`heddle bench`: what the gateway costs, measured beside the direct worker and, when asked, beside a peer.

Invariants: all arms of a run get the same bodies from the same load generator against the same mock engine,
one after the other within each round, in a rotating order; figures of one round are compared with each other,
never with those of another run; an error in any arm fails the run. Nothing here imports the gateway: it is
started as the process its users start.
"""
