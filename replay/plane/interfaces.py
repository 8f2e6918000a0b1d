"""The IP addresses of this machine's network interfaces, as Linux tells them."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def interface_addresses(name: str) -> list[IpAddress]:
    """Return the addresses of interface *name*, IPv4 first.  Empty if there is no such interface.

    IPv6 addresses that are only valid on one link are left out: they mean nothing to a reader
    without the name of its own interface.
    """
    return [*_ipv4_address(name), *_ipv6_addresses(name)]


def _ipv4_address(name: str) -> list[IpAddress]:
    # struct ifreq: 16 bytes of name, then a sockaddr_in whose address stands at byte 4.
    request = struct.pack("16s24x", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return []
    return [ipaddress.IPv4Address(answer[20:24])]


def _ipv6_addresses(name: str) -> list[IpAddress]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:  # a kernel without IPv6
        return []
    # Address without colons, index, prefix length, scope, flags, name.
    rows = [line.split() for line in lines]
    addresses = [ipaddress.IPv6Address(bytes.fromhex(row[0])) for row in rows if row[5] == name]
    return [address for address in addresses if not address.is_link_local]
