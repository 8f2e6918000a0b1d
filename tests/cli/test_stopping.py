"""Signals and exit codes, with a runtime that only records what happens to it."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import pytest
import structlog
import trio
import trio.testing

from replay.cli.stopping import run, run_until_stopped
from replay.config import Config
from replay.errors import BindError, CaptureOpenError, ConfigError


@attrs.define
class RecordingRuntime:
    """Says when it has started, and what was asked of it."""

    addresses: list[str] = attrs.field(factory=lambda: ["127.0.0.1:1"])
    started: trio.Event = attrs.field(factory=trio.Event)
    reopened: trio.Event = attrs.field(factory=trio.Event)
    left: list[str] = attrs.field(factory=list)
    grace: float = 0

    async def reopen_capture(self) -> None:
        self.reopened.set()
        await trio.sleep_forever()

    @asynccontextmanager
    async def open(self, _config: Config) -> AsyncIterator["RecordingRuntime"]:
        self.started.set()
        try:
            yield self
            self.left.append("asked to stop")
            await trio.sleep(self.grace)
            self.left.append("stopped in order")
        except trio.Cancelled:
            self.left.append("cancelled")
            raise


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


async def stop_with(runtime: RecordingRuntime, *signals: int) -> bool:
    """Run until the signals, each sent when the last one was seen, have ended *runtime*."""
    orderly = None

    async def serve() -> None:
        nonlocal orderly
        orderly = await run_until_stopped(runtime.open, Config())

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await runtime.started.wait()
            for number in signals:
                await trio.testing.wait_all_tasks_blocked()
                os.kill(os.getpid(), number)
    assert orderly is not None
    return orderly


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_an_orderly_stop(
    runtime: RecordingRuntime, number: int
) -> None:
    assert await stop_with(runtime, number) is True
    assert runtime.left == ["asked to stop", "stopped in order"]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_ends_at_once(runtime: RecordingRuntime, second: int) -> None:
    runtime.grace = 3600
    assert await stop_with(runtime, signal.SIGTERM, second) is False
    assert runtime.left == ["asked to stop", "cancelled"]


async def test_a_hangup_opens_the_capture_again_and_holds_up_nothing(
    runtime: RecordingRuntime,
) -> None:
    """The path of the capture may hang; the next signal must still be heard."""
    assert await stop_with(runtime, signal.SIGHUP, signal.SIGTERM) is True
    assert runtime.reopened.is_set()


async def test_the_handlers_of_the_process_come_back(runtime: RecordingRuntime) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    await stop_with(runtime, signal.SIGTERM)
    assert [signal.getsignal(number) for number in numbers] == before


def failing(error: Exception) -> Callable[[Config], AbstractAsyncContextManager[RecordingRuntime]]:
    @asynccontextmanager
    async def open_runtime(_config: Config) -> AsyncIterator[RecordingRuntime]:
        raise error
        yield RecordingRuntime()

    return open_runtime


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CaptureOpenError("cannot open capture file x: Is a directory"), 2, "cannot open capture"),
        (ConfigError(["$.a: one", "$.b: two"]), 2, "$.a: one\n$.b: two\n"),
        (BindError("127.0.0.1:1: Address already in use"), 1, "127.0.0.1:1: Address already in"),
        (ExceptionGroup("", [BindError("[::1]:1: in use")]), 1, "[::1]:1: in use\n"),
        (ExceptionGroup("", [ConfigError(["$.a: one"]), BindError("b: in use")]), 2, "$.a: one"),
    ],
)
def test_what_keeps_it_from_starting_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, text: str
) -> None:
    assert run(failing(error), Config()) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(text)
    assert captured.out == ""


def test_an_error_that_nobody_expected_is_logged_and_fails() -> None:
    error = RuntimeError("broken")
    with structlog.testing.capture_logs() as logs:
        assert run(failing(error), Config()) == 1
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("failed", "critical")
    assert line["exc_info"].exceptions == (error,)


def test_an_orderly_stop_is_a_clean_exit(runtime: RecordingRuntime) -> None:
    @asynccontextmanager
    async def open_runtime(_config: Config) -> AsyncIterator[RecordingRuntime]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield runtime

    assert run(open_runtime, Config()) == 0
