"""CURVE: a reader without an allowed key gets nothing, one with an allowed key gets all."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from zmq.auth import create_certificates

from replay.errors import ConfigError
from replay.plane.curve import ClientKeys, ServerKeys
from replay.plane.gap_filling import serve_gaps
from replay.plane.gap_protocol import LONGEST_REQUEST_FRAME, Gap, end_marker, request_frames
from replay.plane.sinks import PlaneSink
from replay.plane.sockets import (
    bind_pub,
    bind_router,
    open_context,
    open_dealer,
    receive_frames,
)
from replay.plane.subscriber import fixed_remotes, run_subscription
from replay.plane.zap import bind_zap, serve_zap, zap_answer
from tests.logs import capture_logs
from tests.plane.peers import Collector, Context, eventually


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a folder with the certificates of a server, of an allowed reader and of another."""
    for name in ("server", "allowed", "stranger"):
        create_certificates(tmp_path, name)
    (tmp_path / "readers").mkdir()
    (tmp_path / "allowed.key").rename(tmp_path / "readers" / "allowed.key")
    return tmp_path


def server_keys(keys: Path) -> ServerKeys:
    return ServerKeys.load(str(keys / "server.key_secret"), str(keys / "readers"))


def client_keys(keys: Path, name: str, server: str = "server") -> ClientKeys:
    return ClientKeys.load(str(keys / f"{name}.key_secret"), str(keys / f"{server}.key"))


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    with capture_logs() as events:
        yield events


@pytest.fixture
async def guarded(keys: Path) -> AsyncIterator[Context]:
    """Return a context in which somebody answers for the keys."""
    async with open_context(term_seconds=5) as context, trio.open_nursery() as answering:
        answering.start_soon(serve_zap, bind_zap(context), server_keys(keys))
        yield context
        answering.cancel_scope.cancel()


async def test_only_the_reader_with_an_allowed_key_gets_messages(
    guarded: Context, keys: Path, events: list[dict[str, Any]]
) -> None:
    bound = bind_pub(guarded, "127.0.0.1", None, high_water_mark=100, curve=server_keys(keys))
    endpoint = f"tcp://127.0.0.1:{bound.port}"
    sink = PlaneSink("shadow", 7, socket=bound.socket)
    readers = {
        "allowed": client_keys(keys, "allowed"),
        "stranger": client_keys(keys, "stranger"),
        "takes another for the server": client_keys(keys, "allowed", server="stranger"),
        "no key": None,
    }
    collectors = {name: Collector() for name in readers}
    async with open_context(term_seconds=5) as context, trio.open_nursery() as running:
        for name, curve in readers.items():
            remotes = fixed_remotes([endpoint])
            running.start_soon(
                lambda remotes=remotes, name=name, curve=curve: run_subscription(
                    context, "shadow", remotes, collectors[name], curve=curve
                )
            )
        allowed = collectors["allowed"]
        await eventually(
            lambda: (
                all(reader.links for reader in collectors.values())
                and allowed.links[0].connected_at is not None
                and collectors["stranger"].links[0].refused == 1
                and collectors["takes another for the server"].links[0].refused >= 2
            )
        )
        with trio.fail_after(5):
            while not allowed.messages:  # the publisher learns of the subscription a moment later
                await sink.publish(b"secret")
                await trio.sleep(0.01)
        first = allowed.sequences[0]
        for _ in range(50):
            await sink.publish(b"secret")
        await allowed.until(lambda it: it.sequences[-1] == sink.next_sequence - 1)
        running.cancel_scope.cancel()
    sink.close(linger_seconds=0)
    assert allowed.sequences == list(range(first, sink.next_sequence))
    for name in ("stranger", "takes another for the server", "no key"):
        assert collectors[name].messages == []
        assert collectors[name].links[0].connected_at is None
    told = [each["event"] for each in events if each["log_level"] == "warning"]
    assert "a publisher refused the connection" in told
    assert "a publisher ends the handshake: it may have another key" in told


async def test_the_service_that_fills_gaps_is_guarded_too(guarded: Context, keys: Path) -> None:
    bound = bind_router(
        guarded,
        "127.0.0.1",
        None,
        high_water_mark=10,
        longest_request=LONGEST_REQUEST_FRAME,
        curve=server_keys(keys),
    )
    answers: dict[str, list[bytes]] = {}

    async def ask(context: Context, name: str) -> None:
        with open_dealer(context, curve=client_keys(keys, name)) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{bound.port}")
            dealer.send_multipart(request_frames(Gap(7, 0, 1)))
            answers[name] = await receive_frames(dealer)

    async with open_context(term_seconds=5) as context, trio.open_nursery() as serving:
        serving.start_soon(serve_gaps, bound.socket, {})
        with trio.move_on_after(0.3):
            await ask(context, "stranger")
        with trio.fail_after(5):
            await ask(context, "allowed")
        serving.cancel_scope.cancel()
    assert answers == {"allowed": end_marker(7)}


async def test_nobody_gets_in_where_nobody_answers_for_the_keys(keys: Path) -> None:
    reader = Collector()
    async with open_context(term_seconds=5) as context:
        bound = bind_pub(context, "127.0.0.1", None, high_water_mark=1, curve=server_keys(keys))
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([f"tcp://127.0.0.1:{bound.port}"])
            curve = client_keys(keys, "allowed")
            running.start_soon(
                lambda: run_subscription(context, "shadow", remotes, reader, curve=curve)
            )
            await reader.until(lambda it: bool(it.links))
            with trio.move_on_after(0.5):
                while True:
                    bound.socket.send_multipart([b"shadow"])
                    await trio.sleep(0.01)
            running.cancel_scope.cancel()
        bound.socket.close(linger=0)
    assert reader.links[0].connected_at is None
    assert reader.reasons == []


ALLOWED = bytes(range(32))


@pytest.mark.parametrize(
    ("mechanism", "credentials", "status"),
    [
        (b"CURVE", [ALLOWED], b"200"),
        (b"CURVE", [bytes(32)], b"400"),
        (b"CURVE", [], b"400"),
        (b"CURVE", [ALLOWED, b""], b"400"),
        (b"NULL", [], b"400"),
        (b"PLAIN", [b"name", b"password"], b"400"),
    ],
)
def test_a_zap_request_is_answered_by_its_key(
    mechanism: bytes, credentials: list[bytes], status: bytes
) -> None:
    keys = ServerKeys(b"", frozenset([zmq.utils.z85.encode(ALLOWED)]))
    request = [b"peer", b"", b"1.0", b"1", b"replay", b"127.0.0.1", b"", mechanism, *credentials]
    answer = zap_answer(request, keys)
    assert answer is not None
    assert answer[:5] == [b"peer", b"", b"1.0", b"1", status]
    assert len(answer) == 8


def test_what_is_no_zap_request_gets_no_answer() -> None:
    keys = ServerKeys(b"", frozenset())
    whole = [b"peer", b"", b"1.0", b"1", b"replay", b"127.0.0.1", b"", b"NULL"]
    assert zap_answer(whole[:7], keys) is None
    assert zap_answer([*whole[:2], b"2.0", *whole[3:]], keys) is None
    assert zap_answer([whole[0], b"x", *whole[2:]], keys) is None


def test_keys_that_cannot_be_read_are_refused_by_name_and_without_content(
    keys: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.key"
    short.write_text('curve\n    public-key = "too short"\n')
    other = tmp_path / "other.key"
    other.write_text("nothing of the kind")
    for load, problem in (
        (lambda: ServerKeys.load(str(keys / "missing"), str(keys)), "missing: no key file"),
        (lambda: ServerKeys.load(str(keys / "server.key"), str(keys)), "has no secret key"),
        (lambda: ServerKeys.load(str(keys / "server.key_secret"), "/nowhere"), "/nowhere"),
        (lambda: client_keys(keys, "allowed", server="short"), "40 characters"),
        (lambda: client_keys(keys, "allowed", server="other"), "cannot be read"),
        (lambda: client_keys(keys, "readers/.."), "no key file"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load()


def test_an_allowed_key_that_can_never_match_is_refused_by_name(keys: Path) -> None:
    """Its holder would be told nothing but that the connection is refused."""
    (keys / "readers" / "cut.key").write_text('curve\n    public-key = "too short"\n')
    (keys / "readers" / "empty.key").touch()
    with pytest.raises(ConfigError) as caught:
        server_keys(keys)
    assert [line.rpartition("/")[2] for line in caught.value.problems] == [
        "cut.key: a CURVE key has 40 characters",
        "empty.key: cannot be read as a CURVE certificate",
    ]


def test_no_text_of_keys_shows_a_secret(keys: Path) -> None:
    server, client = server_keys(keys), client_keys(keys, "allowed")
    for each in (server, client):
        assert each.secret_key.decode() not in repr(each)
