"""Addresses as an operator writes them, and sockets that are bound whole or not at all."""

import errno
import os
import socket
from pathlib import Path

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue

from replay.errors import BindError
from replay.rpc import listeners
from replay.rpc.client import ClientMethod, open_channel
from replay.rpc.listeners import Address, Listening, join_host_port, listen, split_host_port
from tests.rpc.raw_client import assert_answers
from tests.rpc.serving import path_of, serving

ECHO = ClientMethod(path_of("Echo"), BytesValue.FromString)
HELLO = BytesValue(value=b"hello")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:80", "localhost", 80),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:50051", "::1", 50051),
        ("[::]:65535", "::", 65535),
        ("unix:/run/a.sock", "unix:/run/a.sock", 0),
        ("unix:relative:1", "unix:relative:1", 0),
    ],
)
def test_an_address_is_read_and_written_the_same(text, host, port):
    address = split_host_port(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "host:", "host:x", "host:-1", "host:65536", "::1:80", "[::1]", "a:b:80"],
)
def test_what_is_no_address_is_said_to_be_none(text):
    with pytest.raises(ValueError, match="address"):
        split_host_port(text)


def test_a_connection_that_was_accepted_asks_after_a_host_that_says_nothing():
    """Else a gateway's host that vanishes holds its place among the connections for ever."""
    (listening,) = listen([Address("127.0.0.1")])
    client = socket.create_connection(("127.0.0.1", listening.port))
    accepted, _ = listening.sockets[0].accept()
    with client, accepted:
        for level, option, setting in listeners.KEEPALIVE:
            assert accepted.getsockopt(level, option) == setting
    listening.close()


def test_ipv6_is_written_in_brackets_however_it_was_given():
    assert join_host_port("::1", 5) == join_host_port("[::1]", 5) == "[::1]:5"
    assert join_host_port("1.2.3.4", 5) == "1.2.3.4:5"


def close_all(listening: list[Listening]) -> None:
    for each in listening:
        each.close()


def test_port_0_is_a_free_port_and_two_of_them_are_two_ports():
    bound = listen([Address("127.0.0.1"), Address("127.0.0.1", 0)])
    try:
        ports = {each.port for each in bound}
        assert len(ports) == 2
        assert 0 not in ports
        assert [each.names for each in bound] == [[f"127.0.0.1:{each.port}"] for each in bound]
    finally:
        close_all(bound)


def test_a_port_in_use_names_the_address_and_the_reason():
    (first,) = listen([Address("127.0.0.1")])
    port, reason = first.port, os.strerror(errno.EADDRINUSE)
    try:
        with pytest.raises(BindError) as caught:
            listen([Address("127.0.0.1", port)])
    finally:
        first.close()
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: {reason}"


def test_a_range_that_is_partly_taken_leaves_nothing_bound():
    free = socket.create_server(("127.0.0.1", 0))
    taken = socket.create_server(("127.0.0.1", 0))
    port, taken_port = free.getsockname()[1], taken.getsockname()[1]
    free.close()
    with taken, pytest.raises(BindError, match=f"127.0.0.1:{taken_port}"):
        listen([Address("127.0.0.1", port), Address("127.0.0.1", taken_port)])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_an_error_with_its_name(host):
    with pytest.raises(BindError, match=f"cannot listen on {host}:1234: "):
        listen([Address(host, 1234)])


async def test_ipv6_in_brackets():
    try:
        async with (
            serving(address=Address("[::1]")) as served,
            open_channel(served.address) as channel,
        ):
            assert served.address == f"[::1]:{served.port}"
            assert await channel.unary(ECHO, HELLO) == HELLO
    except BindError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


def can_bind(family: int, host: str) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def test_localhost_is_one_port_in_all_families_that_it_stands_for():
    """And that the machine has: some resolve it to ::1 without having that."""
    found = {each[4][0] for each in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    hosts = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    usable = {host for host in found & hosts.keys() if can_bind(hosts[host], host)}
    (bound,) = listen([Address("localhost")])
    try:
        assert set(bound.names) == {join_host_port(host, bound.port) for host in usable}
        for host in usable:
            socket.create_connection((host, bound.port), timeout=1).close()
    finally:
        bound.close()


def test_a_family_that_the_machine_has_not_is_passed_over(monkeypatch):
    """As on a machine without IPv6, where "localhost" still stands for both."""

    def both(host, port, **_):
        strange = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("2001:db8::1", port, 0, 0))
        usual = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        return [strange, usual]

    monkeypatch.setattr(listeners.socket, "getaddrinfo", both)
    (bound,) = listen([Address("localhost")])
    assert bound.names == [f"127.0.0.1:{bound.port}"]
    bound.close()


# ---- Unix sockets


def unix(path: Path) -> Address:
    return Address(f"unix:{path}")


async def test_a_unix_socket_is_served_and_its_file_removed_at_the_stop(tmp_path):
    path = tmp_path / "worker.sock"
    async with serving(address=unix(path)) as served, open_channel(served.address) as channel:
        assert served.address == f"unix:{path}"
        assert await channel.unary(ECHO, HELLO) == HELLO
    assert not path.exists()


def test_the_file_of_a_server_that_has_died_is_replaced(tmp_path):
    path = tmp_path / "worker.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    (bound,) = listen([unix(path)])
    assert (bound.names, bound.port) == ([f"unix:{path}"], 0)
    bound.close()
    assert not path.exists()


def test_the_socket_of_a_server_that_lives_is_refused_and_stays(tmp_path):
    path = tmp_path / "worker.sock"
    (first,) = listen([unix(path)])
    with pytest.raises(BindError, match=f"unix:{path}: {os.strerror(errno.EADDRINUSE)}"):
        listen([unix(path)])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.close()


def test_a_file_that_is_no_socket_is_refused_and_stays(tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(BindError, match=os.strerror(errno.EADDRINUSE)):
        listen([unix(path)])
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["missing/worker.sock", "x" * 200])
def test_a_path_that_cannot_be_a_socket_is_an_error_with_its_name(tmp_path, name):
    with pytest.raises(BindError, match=f"cannot listen on unix:{tmp_path / name}: "):
        listen([unix(tmp_path / name)])


def test_a_second_close_leaves_the_file_of_the_next_server_alone(tmp_path):
    path = tmp_path / "worker.sock"
    (first,) = listen([unix(path)])
    first.close()
    (second,) = listen([unix(path)])
    first.close()
    assert path.exists()
    second.close()


def test_a_unix_socket_is_removed_when_a_later_address_cannot_be_bound(tmp_path):
    path = tmp_path / "worker.sock"
    with pytest.raises(BindError, match=r"192\.0\.2\.1"):
        listen([unix(path), Address("192.0.2.1", 1)])
    assert not path.exists()


async def test_two_servers_on_one_port_are_an_error_even_while_the_first_serves():
    async with serving() as served:
        with pytest.raises(BindError):
            listen([Address("127.0.0.1", served.port)])
        with trio.fail_after(2):
            await assert_answers(served.port)
