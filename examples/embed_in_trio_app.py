"""Another Trio program that mirrors its own requests, and ends the runtime by cancelling it.

    python examples/embed_in_trio_app.py [RECORD_FILE]

The program answers its requests itself; `replay` only sees them pass.  No worker listens
(`grpc_count=0`), and the records go to a file; with `transport` left at its default they would be
on the event plane as well.  Prints what the records say of the requests.
"""

import sys
import tempfile
from pathlib import Path

import trio

from replay.config import (
    Config,
    EventPlaneConfig,
    RecordFileConfig,
    TapCapture,
    TapConfig,
    Transport,
    WorkerConfig,
)
from replay.packed import TokenIds
from replay.plane.codec import decode_message
from replay.plane.record_file import RecordFiles
from replay.request import Request
from replay.runtime import Runtime, serve
from replay.taps.envelope import ShadowEnvelope


def configuration(record_file: Path) -> Config:
    """Return one tap that records requests with their answers, and no worker."""
    return Config(
        worker=WorkerConfig(grpc_count=0),
        event_plane=EventPlaneConfig(transport=Transport.NONE),
        taps=(
            TapConfig(
                name="mine",
                capture=TapCapture.REQUEST_RESPONSE,
                filters=("strip-embeds",),
                record_file=RecordFileConfig(path=str(record_file)),
            ),
        ),
    )


async def answer(runtime: Runtime, number: int) -> None:
    """Answer one request token by token, and let the taps watch."""
    request = Request(model="my-model", token_ids=TokenIds.of(range(number + 1)))
    assert runtime.taps is not None
    with runtime.taps.record(request, request_id=f"own-{number}") as recording:
        for token in range(5):
            await trio.sleep(0.01 * number)
            recording.observe([1000 + token], finish_reason="length" if token == 4 else None)
        recording.end()


async def main(record_file: Path) -> None:
    """Run the runtime beside our own work, and stop it by cancelling the nursery."""
    async with trio.open_nursery() as nursery:
        runtime: Runtime = await nursery.start(serve, configuration(record_file))
        nursery.start_soon(answer, runtime, 1000)  # far from done when everything is cancelled
        async with trio.open_nursery() as requests:
            for number in range(3):
                requests.start_soon(answer, runtime, number)
        nursery.cancel_scope.cancel()
    for frames in RecordFiles(record_file):
        envelope = ShadowEnvelope.unpacked(decode_message(frames).payload)
        assert envelope.response is not None
        print(envelope.request_id, envelope.response.outcome, envelope.response.output_tokens)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(main, Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(main, Path(folder) / "records")
