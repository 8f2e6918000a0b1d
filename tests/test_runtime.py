"""A runtime inside of another Trio program: cancelled anywhere, it leaves at once and whole."""

import os
import signal
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from replay.config.model import (
    Config,
    DiscoveryConfig,
    EventPlaneConfig,
    HttpConfig,
    RecordFileConfig,
    TapCapture,
    TapConfig,
)
from replay.engines.base import Model
from replay.engines.canned import CannedEngine
from replay.runtime import open_runtime, serve
from tests.worker.running import config_of, until


def everything(folder: Path) -> Config:
    """Return a configuration with all that a start opens."""
    plain = config_of(capture=str(folder / "captured"))
    return Config(
        worker=plain.worker,
        http=HttpConfig(port=0),
        event_plane=EventPlaneConfig(discovery=DiscoveryConfig(root=str(folder / "kv"))),
        taps=(
            TapConfig(
                name="one",
                capture=TapCapture.REQUEST,
                replay_buffer=10,
                record_file=RecordFileConfig(path=str(folder / "records")),
            ),
        ),
    )


async def test_what_a_program_awaits_of_a_runtime_gives_others_a_turn() -> None:
    opening = open_runtime(config_of())
    with assert_checkpoints():
        runtime = await opening.__aenter__()
    with assert_checkpoints():
        await runtime.reopen_capture()
    with assert_checkpoints():
        await opening.__aexit__(None, None, None)


class SlowToStart(CannedEngine):
    """Never says that requests may come."""

    def __init__(self) -> None:
        super().__init__(Model())
        self.is_cancelled = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.is_cancelled = True


def holdings(folder: Path) -> tuple[int, int, list[str], list[Path]]:
    """Return the tasks, descriptors, threads of ours and discovery files that there are."""
    threads = [each.name for each in threading.enumerate() if each.name.startswith("replay")]
    files = [each for each in (folder / "kv").rglob("*") if each.is_file()]
    tasks = trio.lowlevel.current_statistics().tasks_living
    return tasks, len(os.listdir("/proc/self/fd")), threads, files


@pytest.mark.parametrize("http", [None, 0])
async def test_a_runtime_that_is_opened_in_a_cancelled_scope_is_left_at_once(
    http: int | None,
) -> None:
    config = Config(worker=config_of().worker, http=HttpConfig(port=http))
    with trio.fail_after(5), trio.CancelScope() as scope:
        scope.cancel()
        async with open_runtime(config):
            await trio.lowlevel.checkpoint()
            pytest.fail("it has started")
    assert scope.cancelled_caught


async def test_a_start_ends_with_its_scope_while_an_engine_is_not_ready() -> None:
    engine = SlowToStart()
    with trio.fail_after(5):
        async with trio.open_nursery() as tasks:
            tasks.start_soon(lambda: serve(config_of(), engine=engine))
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert engine.is_cancelled


async def test_a_runtime_that_is_cancelled_anywhere_leaves_nothing(tmp_path: Path) -> None:
    async def run(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        before = holdings(folder)
        with trio.fail_after(5):
            async with trio.open_nursery() as tasks:
                tasks.start_soon(serve, everything(folder))
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        # The journals' threads end a moment after they have said so.
        await until(lambda: holdings(folder) == before)

    async with open_runtime(everything(tmp_path)):
        pass  # what a process makes once and keeps
    await until(lambda: not holdings(tmp_path)[2])  # else the first run begins with a thread more
    for number in (*range(20), 30, 50, 100):
        await run(number)


def test_an_interrupt_in_the_middle_of_a_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedThread(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "replay-journal":
                signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with open_runtime(config_of(capture=str(tmp_path / "captured"))):
            await trio.sleep_forever()

    monkeypatch.setattr(threading, "Thread", InterruptedThread)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        trio.run(main)
    assert isinstance(caught.value, KeyboardInterrupt) or caught.group_contains(KeyboardInterrupt)
    journals = [each for each in threading.enumerate() if each.name == "replay-journal"]
    for each in journals:  # the thread ends a moment after it has said so
        each.join(timeout=5)
    assert not any(each.is_alive() for each in journals)
    assert len(os.listdir("/proc/self/fd")) == before
