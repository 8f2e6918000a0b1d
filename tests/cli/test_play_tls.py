"""Targets behind TLS, with certificates made here."""

import ssl
import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trustme

from replay.config.engines import CannedConfig
from replay.config.model import Config, ShutdownConfig, TlsConfig, WorkerConfig
from replay.runtime import open_runtime
from tests.cli.test_play_command import run, trace
from tests.player.test_openai_target import FakeEndpoint


@attrs.frozen
class Files:
    """PEM files."""

    ca: str
    certificate: str
    """Of the server and of a client alike, with its key."""
    other_ca: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    paths = [folder / name for name in ("ca.pem", "own.pem", "other.pem")]
    authority.cert_pem.write_to_path(paths[0])
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        paths[1]
    )
    trustme.CA().cert_pem.write_to_path(paths[2])
    return Files(*map(str, paths))


async def play(source: Path, *arguments: str) -> tuple[int, str]:
    """Run `play` in a process of its own; return its exit code and what it said."""
    command = [sys.executable, "-m", "replay", "play", str(source), *arguments]
    with trio.fail_after(30):
        ended = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
    return ended.returncode, ended.stdout.decode()


async def test_a_worker_behind_tls_that_asks_for_our_certificate_is_played(
    tmp_path: Path, files: Files
) -> None:
    source = trace(tmp_path / "trace.jsonl", 5)
    tls = TlsConfig(certificate=files.certificate, key=files.certificate, client_ca=files.ca)
    setup = WorkerConfig(grpc_base_port=0, engine=CannedConfig(), tls=tls)
    async with open_runtime(
        Config(worker=setup, shutdown=ShutdownConfig(grace_seconds=0))
    ) as runtime:
        target = ("--target", f"grpcs://{runtime.addresses[0]}")
        trusted = ("--ca-file", files.ca)
        code, said = await play(source, *target, *trusted, "--cert-file", files.certificate)
        assert code == 0, said
        assert "complete" in said
        code, said = await play(source, *target, *trusted)
        assert code == 1
        assert "UNAVAILABLE" in said
        code, said = await play(source, *target, "--ca-file", files.other_ca)
        assert code == 1
        assert "certificate verify failed" in said
        assert "Traceback" not in said


async def test_an_openai_endpoint_behind_tls_is_played(tmp_path: Path, files: Files) -> None:
    """The server could speak HTTP/2 as well, and must not choose it."""
    source, fake = trace(tmp_path / "trace.jsonl", 5), FakeEndpoint()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen = set()

    async def serve(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, context, server_side=True, https_compatible=True)
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:  # a client that does not trust us
            return
        chosen.add(stream.selected_alpn_protocol())
        await fake.serve(stream)

    async with trio.open_nursery() as serving:
        [listener] = await serving.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        target = ("--target", f"https://localhost:{listener.socket.getsockname()[1]}/v1")
        code, said = await play(source, *target, "--ca-file", files.ca)
        assert code == 0, said
        assert len(fake.requests) == 5
        assert chosen == {"http/1.1"}
        code, said = await play(source, *target, "--ca-file", files.other_ca)
        assert code == 1
        assert "no connection: " in said
        assert "certificate verify failed" in said
        serving.cancel_scope.cancel()


def test_files_that_are_no_certificates_are_told_at_once(tmp_path: Path, files: Files) -> None:
    source = trace(tmp_path / "trace.jsonl", 1)
    options = ("--target", "grpcs://127.0.0.1:1", "--ca-file", source)
    played = run("play", source, *options)
    assert played.exit_code == 2
    assert f"tls: cannot use {source}" in played.output
    played = run("play", source, *options[:2], "--ca-file", files.ca, "--cert-file", files.ca)
    assert played.exit_code == 2
    assert f"tls: cannot use {files.ca}" in played.output
