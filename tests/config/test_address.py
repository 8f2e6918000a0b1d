"""Endpoints that a reader is told to connect to."""

import pytest

from replay.config.address import check_endpoint


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://127.0.0.1:1", "tcp://[::1]:65535", "tcp://plane-0.example.org:5600", "tcp://a_b:5"],
)
def test_an_address_or_a_name_with_a_port_is_an_endpoint(endpoint: str) -> None:
    check_endpoint(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("127.0.0.1:5", "must look like tcp://"),
        ("tcp://127.0.0.1", "must look like tcp://"),
        ("tcp://:5", "must look like tcp://"),
        ("tcp://[::1:5", "must look like tcp://"),
        ("tcp://127.0.0.1:1;tcp://127.0.0.1:2", "must look like tcp://"),
        ("tcp://127.0.0.1:5/x", "must look like tcp://"),
        ("tcp://127.0.0.1:0", "must have a port from 1 to 65535"),
        ("tcp://127.0.0.1:70000", "must have a port from 1 to 65535"),
        ("tcp://*:5", "must be a host"),
        ("tcp://a b:5", "must be a host"),
        ("tcp://1.2.3:5", "must be a host"),
        ("tcp://[x]:5", "must have an IPv6 address"),
    ],
)
def test_what_nobody_can_connect_to_is_named_with_the_reason(endpoint: str, problem: str) -> None:
    """ZeroMQ takes some of these and never connects."""
    with pytest.raises(ValueError, match=problem):
        check_endpoint(endpoint)
