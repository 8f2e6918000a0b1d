"""An event plane with CURVE keys from files: tap, status and the service that fills gaps."""

import signal
from pathlib import Path

import pytest
import trio
from zmq.auth import create_certificates

from replay.plane.curve import ClientKeys
from replay.plane.gap_protocol import Gap, request_frames
from replay.plane.sockets import open_context, open_dealer, receive_frames
from tests.consumer.commands import running
from tests.consumer.test_exact_loss import UNTIL_THE_TAIL_IS_KNOWN_SECONDS
from tests.taps.mirroring import (
    JOINED,
    QUICK,
    ask_worker,
    channels_of,
    consuming,
    counted,
    events,
    worker,
)

REQUESTS, CAPACITY = 300, 10
PROMPT = tuple(range(70_000, 90_000))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a folder with the certificates of a server, of an allowed reader and of another."""
    folder = tmp_path / "keys"
    (folder / "allowed").mkdir(parents=True)
    for name in ("server", "reader", "stranger"):
        create_certificates(folder, name)
    (folder / "reader.key").rename(folder / "allowed" / "reader.key")
    return folder


def flags(keys: Path, name: str) -> tuple[str, ...]:
    return (
        *("--curve-secret-key", str(keys / f"{name}.key_secret")),
        *("--curve-server-key", str(keys / "server.key")),
    )


async def test_only_a_reader_with_an_allowed_key_gets_records_statuses_and_what_was_missed(
    tmp_path: Path, keys: Path
) -> None:
    """The allowed one is stopped for a while, so that it has to ask for most of the records."""
    curve = {
        "secret_key_file": str(keys / "server.key_secret"),
        "allowed_keys_dir": str(keys / "allowed"),
    }
    taps = [{**JOINED, "capacity": CAPACITY, "replay_buffer": 2 * REQUESTS}]
    others = {"no key": (), "a key that is not allowed": flags(keys, "stranger")}
    with worker(tmp_path, taps, event_plane={**QUICK, "curve": curve}) as process:
        async with trio.open_nursery() as reading:
            reports = {}

            async def read_in_vain(name: str) -> None:
                source = ("--topic", "shadow-replay", "--discovery", str(tmp_path))
                async with running(*source, *others[name]) as consumer:
                    await consumer.until("subscribed")
                    await done.wait()
                    reports[name] = (await consumer.end())[1]

            done = trio.Event()
            for name in others:
                reading.start_soon(read_in_vain, name)
            async with consuming(tmp_path, "shadow-replay", *flags(keys, "reader")) as allowed:
                await ask_worker(process, 1)
                await counted(tmp_path, "shadow-replay", 1)
                allowed.process.send_signal(signal.SIGSTOP)
                await ask_worker(process, REQUESTS, prompt=PROMPT, max_new_tokens=1)
                allowed.process.send_signal(signal.SIGCONT)
                await counted(tmp_path, "shadow-replay", 1 + REQUESTS)
                await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
                _, report = await allowed.end()
            (plane,) = (line for line in events(process) if line["event"] == "event plane")
            (tap,) = (line for line in events(process) if line["event"] == "tap")
            answers = {
                name: await answer_of(plane["gaps"], tap["publisher_id"], client)
                for name, client in {
                    "reader": ClientKeys.load(
                        str(keys / "reader.key_secret"), str(keys / "server.key")
                    ),
                    "stranger": ClientKeys.load(
                        str(keys / "stranger.key_secret"), str(keys / "server.key")
                    ),
                    "nobody": None,
                }.items()
            }
            done.set()
    assert report["records"] == 1 + REQUESTS
    assert report["recovered"] > REQUESTS / 4
    assert report["transport_loss"] == report["tail_loss"] == report["tap_gaps"] == 0
    assert set(reports) == set(others)
    for nothing in reports.values():
        assert nothing["records"] == nothing["epochs"] == nothing["undecodable"] == 0
        assert nothing["end_seen"] is None
    assert answers == {"reader": True, "stranger": False, "nobody": False}
    assert channels_of(tmp_path) == []


async def answer_of(endpoint: str, publisher_id: int, keys: ClientKeys | None) -> bool:
    """Ask for the first message of a publisher; return whether an answer came."""
    async with open_context(term_seconds=1) as context:
        with open_dealer(context, curve=keys) as dealer, trio.move_on_after(1):
            dealer.connect(endpoint)
            dealer.send_multipart(request_frames(Gap(publisher_id, 0, 0)))
            await receive_frames(dealer)
            return True
    return False
