"""TLS and mutual TLS with certificates made here: HTTP/2 by ALPN, both ends, wrong certificates."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import grpc
import grpc.aio
import pytest
import trio
import trustme
from google.protobuf.wrappers_pb2 import BytesValue
from purerpc.grpclib.exceptions import UnavailableError

from replay.config.model import TlsConfig
from replay.engines.methods import GENERATE
from replay.errors import ConfigError
from replay.rpc.client import ClientMethod, open_channel
from replay.rpc.tls import client_context, server_context
from tests.engines.requests import generate_request
from tests.rpc.raw_client import PREFACE, RawClient, assert_answers, request, settings
from tests.rpc.serving import path_of, serving, stream, unary, with_aio
from tests.worker.running import config_of, until
from tests.worker.running import running as running_worker

ECHO = ClientMethod(path_of("Echo"), BytesValue.FromString)
PRODUCE = ClientMethod(path_of("Produce"), BytesValue.FromString)
HOLD = ClientMethod(path_of("Hold"), BytesValue.FromString)


@attrs.frozen
class Files:
    """PEM files of an authority, a server called localhost, and a client."""

    ca: str
    certificate: str
    key: str
    client_certificate: str
    client_key: str
    stranger_certificate: str
    """A client that another authority has signed."""
    stranger_key: str


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    paths = {"ca": folder / "ca.pem"}
    authority.cert_pem.write_to_path(paths["ca"])
    for name, issued in (
        ("", authority.issue_cert("localhost", "127.0.0.1")),
        ("client_", authority.issue_cert("client@test")),
        ("stranger_", other.issue_cert("stranger@test")),
    ):
        paths[f"{name}certificate"] = folder / f"{name}certificate.pem"
        paths[f"{name}key"] = folder / f"{name}key.pem"
        issued.private_key_pem.write_to_path(paths[f"{name}key"])
        for blob in issued.cert_chain_pems:
            blob.write_to_path(paths[f"{name}certificate"], append=True)
    return Files(**{name: str(path) for name, path in paths.items()})


@asynccontextmanager
async def secure_serving(files: Files, *, mutual: bool = False) -> AsyncIterator:
    context = server_context(files.certificate, files.key, files.ca if mutual else None)
    async with serving(tls=context) as served:
        yield served


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def aio_credentials(files: Files, *, client: str | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(read(files.ca))
    return grpc.ssl_channel_credentials(
        read(files.ca),
        read(getattr(files, f"{client}_key")),
        read(getattr(files, f"{client}_certificate")),
    )


async def echo_of_aio(channel: grpc.aio.Channel) -> bytes:
    return (await unary(channel, path_of("Echo"), b"secret", timeout=10)).value


async def test_our_client_and_server_speak_through_tls(files):
    async with (
        secure_serving(files) as served,
        open_channel(f"localhost:{served.port}", tls=client_context(files.ca)) as channel,
    ):
        answer = await channel.unary(ECHO, BytesValue(value=b"secret"))
        assert answer.value == b"secret"
        # Larger than a record, a window and a socket's buffer.
        async with channel.stream(PRODUCE, BytesValue(value=b"20 1048576")) as answers:
            sizes = [len(each.value) async for each in answers]
        assert sizes == [1 << 20] * 20


async def test_leaving_a_stream_through_tls_ends_its_handler(files):
    async with (
        secure_serving(files) as served,
        open_channel(f"localhost:{served.port}", tls=client_context(files.ca)) as channel,
    ):
        async with channel.stream(HOLD, BytesValue(value=b"a")) as answers:
            await answers.wait_head()
        await until(lambda: len(served.handlers.ended) == 1)


async def test_grpc_aio_speaks_through_tls_and_gets_all_of_a_stream(files):
    async def client(channel):
        got = [each.value async for each in stream(channel, path_of("Produce"), b"50 100000")]
        return await echo_of_aio(channel), sum(map(len, got))

    async with secure_serving(files) as served:
        answer = await with_aio(
            f"localhost:{served.port}", client, credentials=aio_credentials(files)
        )
    assert answer == (b"secret", 5_000_000)


async def test_http2_is_agreed_on_by_alpn(files):
    async with secure_serving(files) as served:
        plain = await trio.open_tcp_stream("127.0.0.1", served.port)
        context = client_context(files.ca)
        context.set_alpn_protocols(["http/1.1", "h2"])
        secure = trio.SSLStream(plain, context, server_hostname="localhost")
        async with secure:
            await secure.do_handshake()
            assert secure.selected_alpn_protocol() == "h2"


async def test_a_client_that_does_not_trust_the_server_is_unavailable(files):
    async with secure_serving(files) as served:
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.load_default_certs()
        async with open_channel(f"localhost:{served.port}", tls=stranger) as channel:
            with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                await channel.unary(ECHO, BytesValue())
        # The next client is served as if nothing had been.
        async with open_channel(
            f"localhost:{served.port}", tls=client_context(files.ca)
        ) as channel:
            await channel.unary(ECHO, BytesValue())


async def test_a_certificate_for_another_name_is_refused(files):
    async with secure_serving(files) as served:
        tls = client_context(files.ca)
        async with open_channel(f"127.0.0.2:{served.port}", tls=tls) as channel:
            with pytest.raises(UnavailableError):
                await channel.unary(ECHO, BytesValue())


async def test_bytes_without_tls_are_closed_within_two_seconds_and_others_unaffected(files):
    async with secure_serving(files) as served:
        plain = await trio.open_tcp_stream("127.0.0.1", served.port)
        async with plain:
            client = RawClient(plain)
            await client.send(PREFACE, settings(), request(1, value=b"in the open"))
            await client.end(seconds=2)
        answer = await with_aio(
            f"localhost:{served.port}", echo_of_aio, credentials=aio_credentials(files)
        )
        assert answer == b"secret"


async def test_a_tls_hello_on_a_plain_port_is_closed_within_two_seconds(files):
    async with serving() as served:
        plain = await trio.open_tcp_stream("127.0.0.1", served.port)
        secure = trio.SSLStream(plain, client_context(files.ca), server_hostname="localhost")
        with trio.fail_after(2), pytest.raises(trio.BrokenResourceError):
            await secure.do_handshake()
        await trio.aclose_forcefully(secure)
        await assert_answers(served.port)


# ---- a client's certificate


async def test_a_client_with_a_certificate_is_served_where_one_is_required(files):
    async with secure_serving(files, mutual=True) as served:
        tls = client_context(files.ca, files.client_certificate, files.client_key)
        async with open_channel(f"localhost:{served.port}", tls=tls) as channel:
            assert (await channel.unary(ECHO, BytesValue(value=b"me"))).value == b"me"
        answer = await with_aio(
            f"localhost:{served.port}",
            echo_of_aio,
            credentials=aio_credentials(files, client="client"),
        )
        assert answer == b"secret"


@pytest.mark.parametrize("client", [None, "stranger"])
async def test_a_client_without_a_certificate_or_with_a_strangers_is_refused(files, client):
    async def call(channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo_of_aio(channel)
        return caught.value.code()

    if client is None:
        tls = client_context(files.ca)
    else:
        tls = client_context(files.ca, files.stranger_certificate, files.stranger_key)
    async with secure_serving(files, mutual=True) as served:
        async with open_channel(f"localhost:{served.port}", tls=tls) as channel:
            with pytest.raises(UnavailableError):
                await channel.unary(ECHO, BytesValue())
        code = await with_aio(
            f"localhost:{served.port}", call, credentials=aio_credentials(files, client=client)
        )
        assert code is grpc.StatusCode.UNAVAILABLE
        assert not served.handlers.ended


# ---- the worker and its configuration


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_worker_with_tls_files_answers_generate(files, mutual):
    tls = TlsConfig(
        certificate=files.certificate,
        key=files.key,
        client_ca=files.ca if mutual else None,
    )
    async with running_worker(config_of(tls=tls)) as worker:
        port = worker.runtime.addresses[0].rpartition(":")[2]
        context = client_context(files.ca, files.client_certificate, files.client_key)
        async with (
            open_channel(f"grpcs://localhost:{port}", tls=context) as channel,
            channel.stream(GENERATE, generate_request(max_new_tokens=3)) as answers,
        ):
            got = [each async for each in answers]
        assert got[-1].complete.completion_tokens == 3


@pytest.mark.parametrize("wrong", ["certificate", "key", "client_ca"])
def test_a_file_that_cannot_be_used_is_named(files, tmp_path, wrong):
    arguments = {"certificate": files.certificate, "key": files.key, "client_ca": files.ca}
    missing = str(tmp_path / "missing.pem")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN NOTHING-----\n")
    for path in (missing, str(broken)):
        with pytest.raises(ConfigError, match=path):
            server_context(**{**arguments, wrong: path})


def test_a_key_of_another_certificate_is_refused(files):
    with pytest.raises(ConfigError, match=r"(?i)key.values.mismatch"):
        server_context(files.certificate, files.client_key)
