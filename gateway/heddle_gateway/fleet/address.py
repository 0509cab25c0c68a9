"""Worker URLs: one canonical form, and a guard against being sent where a gateway must not go (SSRF).

Anybody who can add a worker makes the gateway send requests to a host of their choice. So: http and https
only, no user info, no query, never link-local or cloud metadata addresses, and an optional list of allowed
hosts. Private and loopback addresses are allowed, since workers live there. A host name is resolved and
each of its addresses is judged when the worker is added and again whenever it is asked who it is; between
that and a later request a hostile name server can still answer differently, which only the list of hosts
closes.
"""

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from heddle_gateway.fleet.errors import AddressRefused, Unreachable

IPAddress = IPv4Address | IPv6Address

MAX_URL_LENGTH = 2048
RESOLVE_TIMEOUT_S = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}

# Link-local (where clouds serve credentials), and the metadata services that live elsewhere.
BLOCKED_NETWORKS: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::/32",  # AWS, IPv6
        "fd20:ce::254/128",  # Google, IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's wire server
        "192.0.0.192/32",  # Oracle
    )
)
BLOCKED_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
NAT64 = ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's URL in canonical form: lower-case scheme and host, no default port, no trailing slash.

    Two addresses are the same worker exactly when ``url`` is equal. ``host`` has no brackets.
    """

    url: str
    scheme: str
    host: str
    port: int
    literal: IPAddress | None

    @property
    def host_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_worker_url(text: str) -> WorkerAddress:
    """Reads a URL as people write it; ``/v1`` at the end is dropped, a path before it is kept.

    Raises AddressRefused with what to change.
    """
    url = text.strip()
    shown = _without_user_info(url)[:200]
    if not url or len(url) > MAX_URL_LENGTH:
        raise AddressRefused(shown, f"give a URL of 1 to {MAX_URL_LENGTH} characters")
    if any(ord(char) <= 0x20 or ord(char) == 0x7F or char == "\\" for char in url):
        raise AddressRefused(shown, "it holds blanks, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(shown, str(error)) from error
    if parts.scheme not in DEFAULT_PORTS:
        raise AddressRefused(shown, "write it as http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        raise AddressRefused(shown, "no user or password in the URL; give a key as api_key")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise AddressRefused(shown, "no query and no fragment")
    if not parts.hostname:
        raise AddressRefused(shown, "the host is missing")
    if port == 0:
        raise AddressRefused(shown, "port 0 names no server")
    host, literal = _canonical_host(parts.hostname, shown)
    if literal is not None:
        _judge_address(literal, shown)
    elif host.rstrip(".") in BLOCKED_NAMES:
        raise AddressRefused(shown, "that is a cloud's metadata service")
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1").rstrip("/")
    if any(segment in {".", ".."} for segment in path.split("/")):
        raise AddressRefused(shown, "no . or .. in the path")
    real_port = port or DEFAULT_PORTS[parts.scheme]
    shown_host = f"[{host}]" if ":" in host else host
    netloc = shown_host if real_port == DEFAULT_PORTS[parts.scheme] else f"{shown_host}:{real_port}"
    return WorkerAddress(f"{parts.scheme}://{netloc}{path}", parts.scheme, host, real_port, literal)


def check_allowed_host(address: WorkerAddress, allowed_hosts: Iterable[str]) -> None:
    """An empty list allows all. An entry is a host, host:port, or ``.example.com`` for all names below it."""
    entries = [entry.lower() for entry in allowed_hosts]
    if not entries:
        return
    for entry in entries:
        if entry in {address.host, address.host_port}:
            return
        if entry.startswith(".") and address.literal is None and address.host.endswith(entry):
            return
    raise AddressRefused(address.url, "its host is not in the list of allowed worker hosts")


def parse_allowed_url(text: str, allowed_hosts: Iterable[str]) -> WorkerAddress:
    """Raises AddressRefused."""
    address = parse_worker_url(text)
    check_allowed_host(address, allowed_hosts)
    return address


async def check_resolved(address: WorkerAddress) -> None:
    """Judges what the host name points to now.

    Raises AddressRefused where any address is blocked, Unreachable where the name does not resolve.
    """
    if address.literal is not None:
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:  # TimeoutError is one
        raise Unreachable(f"the name {address.host} does not resolve: {error}") from error
    for _family, _type, _proto, _canonical, sockaddr in found:
        _judge_address(ip_address(str(sockaddr[0]).partition("%")[0]), address.url)


def _canonical_host(host: str, shown: str) -> tuple[str, IPAddress | None]:
    if ":" in host:
        bare, percent, _zone = host.partition("%")
        try:
            literal = ip_address(bare)
        except ValueError as error:
            raise AddressRefused(shown, f"{host} is no IPv6 address") from error
        if percent:
            raise AddressRefused(shown, "no zone in an IPv6 address: link-local workers are not allowed")
        return literal.compressed, literal
    try:
        return host, IPv4Address(host)
    except ValueError:
        pass
    try:
        ascii_host = host.encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise AddressRefused(shown, f"{host} is no host name") from error
    if not all(char.isalnum() or char in "-._" for char in ascii_host):
        raise AddressRefused(shown, f"{host} is no host name")
    return ascii_host, None


def _judge_address(address: IPAddress, shown: str) -> None:
    """Also sees through the IPv6 forms that carry an IPv4 address."""
    forms: list[IPAddress] = [address]
    if isinstance(address, IPv6Address):
        for inner in (address.ipv4_mapped, address.sixtofour, address.teredo and address.teredo[1]):
            if inner is not None:
                forms.append(inner)
        if address in NAT64:
            forms.append(IPv4Address(int(address) & 0xFFFFFFFF))
    for form in forms:
        if form.is_unspecified:
            raise AddressRefused(shown, f"{form} is no address to send to; for this machine write 127.0.0.1")
        if form.is_multicast or form == IPv4Address("255.255.255.255"):
            raise AddressRefused(shown, f"{form} is not the address of one server")
        if form.is_link_local or any(
            form in network for network in BLOCKED_NETWORKS if network.version == form.version
        ):
            raise AddressRefused(shown, f"{form} is a link-local or metadata address")


def _without_user_info(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
