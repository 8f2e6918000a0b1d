"""Where publishers bind, and what they tell: only the bind address decides who can connect."""

import ipaddress

import pytest

from replay.errors import ConfigError
from replay.plane.addresses import resolve_addresses
from replay.plane.interfaces import IpAddress, interface_addresses

INTERFACES = {
    "eth7": ["192.0.2.7", "2001:db8::7"],
    "wg7": ["2001:db8::77"],
    "lo": ["127.0.0.1", "::1"],
}


def addresses_of(name: str) -> list[IpAddress]:
    return [ipaddress.ip_address(each) for each in INTERFACES.get(name, [])]


@pytest.mark.parametrize(
    ("bind", "advertise", "bind_host", "told"),
    [
        ("tcp://127.0.0.1:*", None, "127.0.0.1", "tcp://127.0.0.1:5600"),
        ("tcp://127.0.0.1:*", "127.0.0.1", "127.0.0.1", "tcp://127.0.0.1:5600"),
        ("tcp://[::1]:*", None, "::1", "tcp://[::1]:5600"),
        ("tcp://*:*", "192.0.2.9", "0.0.0.0", "tcp://192.0.2.9:5600"),
        ("tcp://0.0.0.0:*", "gateway.example", "0.0.0.0", "tcp://gateway.example:5600"),
        ("tcp://eth7:*", None, "192.0.2.7", "tcp://192.0.2.7:5600"),
        ("tcp://wg7:*", None, "2001:db8::77", "tcp://[2001:db8::77]:5600"),
        ("tcp://*:*", "eth7", "0.0.0.0", "tcp://192.0.2.7:5600"),
        ("tcp://*:*", " eth7 ", "0.0.0.0", "tcp://192.0.2.7:5600"),
        # Rule 63: an advertised IPv6 address moves the binding to IPv6, as wide as it was.
        ("tcp://*:*", "2001:db8::7", "::", "tcp://[2001:db8::7]:5600"),
        ("tcp://0.0.0.0:*", "[2001:db8::7]", "::", "tcp://[2001:db8::7]:5600"),
        ("tcp://*:*", "wg7", "::", "tcp://[2001:db8::77]:5600"),
        ("tcp://127.0.0.1:*", "::1", "::1", "tcp://[::1]:5600"),
        # An advertised address never opens the loopback to others.
        ("tcp://127.0.0.1:*", "192.0.2.7", "127.0.0.1", "tcp://192.0.2.7:5600"),
    ],
)
def test_a_bind_and_an_advertised_address(
    bind: str, advertise: str | None, bind_host: str, told: str
) -> None:
    addresses = resolve_addresses(bind, advertise, addresses_of=addresses_of)
    assert addresses.bind_host == bind_host
    assert addresses.advertised(5600) == told
    assert addresses.is_unreachable == (bind_host == "127.0.0.1" and "192.0.2.7" in told)


@pytest.mark.parametrize(
    ("bind", "advertise", "problem"),
    [
        ("tcp://nope0:*", None, "nope0 has no address"),
        ("tcp://*:*", None, "wildcard"),
        ("tcp://127.0.0.1:*", "0.0.0.0", "wildcard"),
        ("tcp://127.0.0.1:*", "[::]", "wildcard"),
        ("tcp://192.0.2.7:*", "2001:db8::7", "listens on 192.0.2.7 only"),
        ("tcp://127.0.0.1:*", "2001:db8::7", "listens on 127.0.0.1 only"),
    ],
)
def test_addresses_that_cannot_work_are_refused(
    bind: str, advertise: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve_addresses(bind, advertise, addresses_of=addresses_of)


def test_a_fixed_port_is_that_of_the_first_socket_and_the_others_follow() -> None:
    fixed = resolve_addresses("tcp://127.0.0.1:5600", None)
    assert [fixed.port(index) for index in range(3)] == [5600, 5601, 5602]
    free = resolve_addresses("tcp://127.0.0.1:*", None)
    assert [free.port(index) for index in range(2)] == [None, None]


def test_the_loopback_interface_has_its_address_and_an_unknown_one_has_none() -> None:
    assert interface_addresses("lo")[0] == ipaddress.ip_address("127.0.0.1")
    assert interface_addresses("nope0") == []
    assert interface_addresses("a-name-longer-than-any-interface") == []
