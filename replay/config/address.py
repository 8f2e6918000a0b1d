"""What a host, a Unix socket and an event-plane address look like in the configuration.

PURE: nothing is resolved and nothing is bound.  A host is kept without brackets; only
`format_address` puts them back.
"""

import ipaddress
import re

import attrs

#: The form of a worker's `host` that means a Unix socket: `unix:/run/replay.sock`.
UNIX_PREFIX = "unix:"

#: `sun_path` holds 108 bytes on Linux, the last of them a NUL.
UNIX_PATH_BYTES = 107

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,14}")


@attrs.frozen
class BindAddress:
    """Where PUB sockets bind: a host without brackets, `*` for every address."""

    host: str
    port: int | None
    """None asks for any free port."""


def parse_host(text: str) -> str:
    """Return a host without brackets.  Raises ValueError with what is wrong.

    A host is an IPv4 address, an IPv6 address (in brackets or bare, with or without a zone) or a
    name.
    """
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1]
        if not _is_ip(inner, 6):
            raise ValueError("must have an IPv6 address in its brackets")
        return inner
    if ":" in text:
        if _is_ip(text, 6):
            return text
        if re.fullmatch(r"(\[.*\]|[^:]*):[0-9]+", text):
            raise ValueError("must be a host without a port")
        raise ValueError("must be a host: an IPv6 address does not look like this")
    if re.fullmatch(r"[0-9.]+", text):
        if not _is_ip(text, 4):
            raise ValueError("must be a host: an IPv4 address has four numbers from 0 to 255")
        return text
    name = text.removesuffix(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError("must be a host: an address or a name")
    return text


def parse_bind(text: str) -> BindAddress:
    """Read `tcp://HOST:PORT` as the event plane binds it.  Raises ValueError with what is wrong.

    The host is an IP address, the name of an interface or `*`; ZeroMQ resolves no other names when
    it binds.  The port is a number or `*`.
    """
    match = re.fullmatch(r"tcp://(\[[^\]]*\]|[^:\[\]]+):([0-9]{1,5}|\*)", text)
    if match is None:
        raise ValueError("must look like tcp://127.0.0.1:* or tcp://[::1]:5600")
    host, port = match[1], match[2]
    if host.startswith("[") or re.fullmatch(r"[0-9.]+", host):
        host = parse_host(host)
    elif host == "localhost":
        raise ValueError("must name an address: write 127.0.0.1 or [::1] for localhost")
    elif host != "*" and not _INTERFACE.fullmatch(host):
        raise ValueError("must have an IP address, an interface or * as its host")
    if port == "*":
        return BindAddress(host, None)
    if not 1 <= int(port) <= 65535:
        raise ValueError("must have a port from 1 to 65535, or * for any free one")
    return BindAddress(host, int(port))


def check_endpoint(text: str) -> None:
    """Check `tcp://HOST:PORT` as a reader connects to it.  Raises ValueError with what is wrong.

    The host is an IP address or a name that can be resolved.
    """
    match = re.fullmatch(r"tcp://(\[[^\]]*\]|[^:\[\]]+):([0-9]{1,5})", text)
    if match is None:
        raise ValueError("must look like tcp://host:port or tcp://[::1]:5600")
    parse_host(match[1])
    if not 1 <= int(match[2]) <= 65535:
        raise ValueError("must have a port from 1 to 65535")


def unix_socket(host: str) -> str | None:
    """Return the path of a host of the form `unix:/path`, or None for any other host."""
    return host.removeprefix(UNIX_PREFIX) if host.startswith(UNIX_PREFIX) else None


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach *host*.  Of names only `localhost` counts."""
    address = _address(host)
    return address.is_loopback if address else host.rstrip(".").lower() == "localhost"


def is_wildcard(host: str) -> bool:
    """Say whether *host* stands for every address of the machine, and so for no peer's."""
    address = _address(host)
    return address.is_unspecified if address else host == "*"


def format_address(host: str, port: int) -> str:
    """Return `host:port` with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # ::ffff:127.0.0.1 is reached as its IPv4 address.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
