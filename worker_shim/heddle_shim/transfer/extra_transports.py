"""Transports that are installed as extras, by name."""

from collections.abc import Callable
from typing import Final

from heddle_shim.transfer.mooncake import MooncakeMover
from heddle_shim.transfer.mover import Mover
from heddle_shim.transfer.nixl import NixlMover

EXTRAS: Final[dict[str, Callable[[str], Mover]]] = {
    "mooncake": MooncakeMover,
    "mooncake-tcp": lambda host: MooncakeMover(host, protocol="tcp"),
    "nixl": lambda host: NixlMover(),
}
"""The argument is the address others reach this host at."""


class UnknownTransport(ValueError):
    """A name that is no extra transport's."""


def load_mover(name: str, host: str) -> Mover:
    """The engine of an extra transport.

    Raises:
        UnknownTransport: no transport of this name.
        TransportMissing: it is not installed, or does not start here.
    """
    try:
        make = EXTRAS[name]
    except KeyError:
        raise UnknownTransport(
            f"transport: {name!r} is not known; known are {', '.join(EXTRAS)}, and tcp, which is always there"
        ) from None
    return make(host)
