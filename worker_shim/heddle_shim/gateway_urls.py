"""The gateways that a shim or a host is told of on its command line."""

from urllib.parse import urlsplit

import typer


def gateway_urls(given: list[str] | None) -> list[str] | None:
    """As they are, without a slash at the end. Raises BadParameter for one that is no URL: it would be asked
    in vain for ever.
    """
    for one in given or ():
        try:
            parts = urlsplit(one)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            known = False
        if not known:
            raise typer.BadParameter(f"{one!r} is no URL such as http://gateway:8000")
    return given if given is None else [one.rstrip("/") for one in given]
