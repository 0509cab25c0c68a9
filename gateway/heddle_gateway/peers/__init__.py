"""Several gateways of one namespace that decide as one: a leader decides, the others ask it.

frames, link     messages between two gateways over one connection
desk             where a step is decided about: the two ways, under one set of calls
own_desk         here: book, directory and core of this process
leader_desk      at the leader: asked over the link, remembered until the leader has it
hosting          at the leader: the steps of the others, in its own book and core
reign            which of the two it is: the lease, the link, taking over and standing down
admin_proxy      an operator may ask any of them
"""
