"""`replay serve` as a process: what it says where, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Longer than any start or stop here takes, even on a busy machine.
PATIENCE_SECONDS = 30


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, Any]]]]:
    """Start the command and wait until it listens; give the process and its log so far."""
    command = [sys.executable, "-m", "replay", "serve", "--log-format", "json", *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            log: list[dict[str, Any]] = []
            while not log or log[-1]["event"] != "listening":
                log.append(json.loads(process.stderr.readline()))
            yield process, log
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, list[str]]:
    """Send a signal; return the exit code, stdout, and the events logged since."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, [json.loads(line)["event"] for line in err.splitlines()]


def refused(*flags: str) -> tuple[int, str, str]:
    """Run the command that must not start; return exit code, stdout, and stderr without the log."""
    done = subprocess.run(
        [sys.executable, "-m", "replay", "serve", "--log-format", "json", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert '"listening"' not in done.stderr
    return done.returncode, done.stdout, "\n".join(said)


def connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def free_range(count: int) -> int:
    """Return the first of so many ports that were free a moment ago."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            base: int = first.getsockname()[1]
        try:
            for port in range(base, base + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return base


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_on_stderr_and_ends_with_0(number: int) -> None:
    with serving("--grpc-base-port", "0", "--grpc-count", "2") as (process, log):
        addresses = log[-1]["addresses"]
        assert len(set(addresses)) == 2
        assert all(connects(address) for address in addresses)
        code, out, events = end(process, number)
        assert (code, out) == (0, "")
        assert events[0] == "stop requested"
        assert not any(connects(address) for address in addresses)


def test_the_effective_configuration_is_logged_at_start() -> None:
    with serving("--grpc-base-port", "0", "--token-ms", "2") as (process, log):
        sections = {line["section"]: line["value"] for line in log if "section" in line}
        assert sections["worker"]["engine"]["token_ms"] == 2.0
        assert sections["shutdown"] == {"grace_seconds": 5.0, "drain_seconds": 2.0}
        end(process)


def test_an_ipv6_address_is_told_in_brackets() -> None:
    with serving("--grpc-base-port", "0", "--host", "[::1]") as (process, log):
        (address,) = log[-1]["addresses"]
        assert address.startswith("[::1]:")
        assert connects(address)
        assert end(process)[0] == 0


def test_a_port_in_use_is_named_and_nothing_stays_bound() -> None:
    """The second port of the range is taken, so the first must be free again."""
    port = free_range(2) + 1
    with socket.create_server(("127.0.0.1", port)):
        code, out, err = refused("--grpc-base-port", str(port - 1), "--grpc-count", "2")
        assert (code, out) == (1, "")
        assert f"127.0.0.1:{port}" in err
        assert "Address already in use" in err
        assert not connects(f"127.0.0.1:{port - 1}")


@pytest.mark.parametrize("kind", ["missing folder", "folder", "fifo without a reader"])
def test_a_capture_that_cannot_be_opened_ends_with_2(tmp_path: Path, kind: str) -> None:
    path = {"missing folder": tmp_path / "none" / "x", "folder": tmp_path}.get(kind)
    if path is None:
        path = tmp_path / "fifo"
        os.mkfifo(path)
    code, out, err = refused("--grpc-base-port", "0", "--capture", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"cannot open capture file {path}: ")


def test_a_capture_without_a_worker_is_warned_of(tmp_path: Path) -> None:
    flags = ("--grpc-count", "0", "--capture", str(tmp_path / "x"))
    with serving(*flags) as (process, log):
        assert "warning" in [line["level"] for line in log]
        assert end(process)[0] == 0


def test_a_hangup_opens_the_capture_again(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with serving("--grpc-base-port", "0", "--capture", str(path)) as (process, _):
        path.rename(tmp_path / "rotated")
        process.send_signal(signal.SIGHUP)
        assert end(process)[0] == 0
    assert path.exists()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_wrong_script_ends_with_2_and_file_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"request_id": "r", "chunks": [[1]]}\n{"request_id": "s"}\n{]\n')
    code, out, err = refused("--grpc-base-port", "0", "--script", str(path))
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == f"{path}:2: chunks: is missing"
    assert second.startswith(f"{path}:3: is not JSON from character 2: ")


def test_a_script_that_is_longer_than_the_grace_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"request_id": "*", "chunks": [[1]], "offsets_ms": [7000]}\n')
    flags = ("--grpc-base-port", "0", "--script", str(path), "--script-strict")
    with serving(*flags) as (process, log):
        (warned,) = [line["event"] for line in log if line["level"] == "warning"]
        assert warned == (
            "shutdown.grace_seconds: 5 s are less than the longest answer of worker.script takes, "
            "7 s: a stop cuts it short"
        )
        assert end(process)[0] == 0
