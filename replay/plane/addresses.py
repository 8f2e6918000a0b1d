"""Where the publishers of a runtime bind, and what they tell consumers.

The bind address decides who can connect; the advertised one is only told.  So an advertised
address never widens the binding; it can only move a wildcard or the loopback to its own in IPv6.
"""

import ipaddress
from collections.abc import Callable, Sequence

import attrs

from replay.config.address import format_address, is_loopback, is_wildcard, parse_bind
from replay.errors import ConfigError
from replay.plane.interfaces import IpAddress, interface_addresses


@attrs.frozen
class PlaneAddresses:
    """The hosts and ports of a runtime's publishers."""

    bind_host: str
    """An IP address, without brackets."""
    first_port: int | None
    """Port of the first socket, the others follow; None: any free ports."""
    advertised_host: str
    """What discovery tells, without brackets; never a wildcard."""

    def port(self, index: int) -> int | None:
        """Return the port that socket number *index* is to bind; None: any free one."""
        return None if self.first_port is None else self.first_port + index

    def advertised(self, port: int) -> str:
        """Return the endpoint under which consumers find *port*."""
        return f"tcp://{format_address(self.advertised_host, port)}"

    @property
    def is_unreachable(self) -> bool:
        """Whether consumers elsewhere are sent to an address that nothing listens on."""
        return is_loopback(self.bind_host) and not is_loopback(self.advertised_host)


def resolve_addresses(
    bind: str,
    advertise: str | None,
    *,
    addresses_of: Callable[[str], Sequence[IpAddress]] = interface_addresses,
) -> PlaneAddresses:
    """Work out the addresses of `event_plane.bind` and `event_plane.advertise`.

    Both may name an interface: its first address counts, IPv4 before IPv6.  An advertised IPv6
    address moves a wildcard to `::` and the loopback to `::1`.  Raises `ConfigError` for what
    `replay.config` cannot see without the machine: an interface without an address, an IPv6
    address to be advertised for an IPv4 one.
    """
    address = parse_bind(bind)
    host = "0.0.0.0" if address.host == "*" else address.host
    if not _is_ip(host):
        found = addresses_of(host)
        if not found:
            raise ConfigError([f"event_plane.bind: interface {host} has no address"])
        host = str(found[0])
    told = host if advertise is None else advertise.strip().strip("[]")
    if not _is_ip(told):
        # Neither an address nor an interface: a name that the consumers resolve.
        told = next((str(each) for each in addresses_of(told)), told)
    if is_wildcard(told):
        raise ConfigError(["event_plane.advertise: a wildcard is no address to connect to"])
    if _is_ipv6(told) and not _is_ipv6(host):
        if is_wildcard(host):
            host = "::"
        elif is_loopback(host) and is_loopback(told):
            host = told
        else:
            text = f"is an IPv6 address, but event_plane.bind listens on {host} only"
            raise ConfigError([f"event_plane.advertise: {text}"])
    return PlaneAddresses(host, address.port, told)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    return ":" in text
