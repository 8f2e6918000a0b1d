"""The service that answers for missed messages, and the reader who asks it: real sockets."""

from collections.abc import AsyncIterator

import pytest
import trio
import zmq

from replay.plane import gap_filling
from replay.plane.codec import Message
from replay.plane.gap_filling import fill_gaps, serve_gaps
from replay.plane.gap_protocol import LONGEST_REQUEST_FRAME, Gap, end_marker, request_frames
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sockets import bind_router, open_context, open_dealer, receive_frames
from tests.plane.peers import Context
from tests.plane.records import messages

PUBLISHER_ID = 7


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with open_context(term_seconds=5) as context:
        yield context


def buffer_of(count: int, *, first: int = 0, capacity: int = 1000) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity)
    for sequence, frames in enumerate(messages(count, publisher_id=PUBLISHER_ID)):
        if sequence >= first:
            buffer.append(sequence, frames)
    return buffer


async def serve(
    context: Context,
    buffers: dict[int, ReplayBuffer],
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    bound = bind_router(
        context,
        "127.0.0.1",
        None,
        high_water_mark=gap_filling.ROUTER_HIGH_WATER_MARK,
        longest_request=LONGEST_REQUEST_FRAME,
    )
    task_status.started(f"tcp://127.0.0.1:{bound.port}")
    await serve_gaps(bound.socket, buffers)


async def ask(context: Context, endpoint: str, *requests: list[bytes]) -> list[list[bytes]]:
    """Send requests, and return all messages up to the end marker of the last one."""
    received = []
    with open_dealer(context) as dealer:
        dealer.connect(endpoint)
        for request in requests:
            dealer.send_multipart(request)
        with trio.fail_after(5):
            while not received or received[-1][3] != b"\xff" * 8:
                received.append(await receive_frames(dealer))
    return received


async def test_an_answer_is_the_stored_messages_unchanged_and_an_end_marker(
    context: Context,
) -> None:
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(10)})
        answer = await ask(context, endpoint, request_frames(Gap(PUBLISHER_ID, 3, 6)))
        serving.cancel_scope.cancel()
    stored = messages(10, publisher_id=PUBLISHER_ID)
    assert answer == [*([b"", *stored[n]] for n in range(3, 7)), end_marker(PUBLISHER_ID)]


@pytest.mark.parametrize(
    "gap",
    [Gap(99, 0, 5), Gap(PUBLISHER_ID, 10, 20), Gap(PUBLISHER_ID, 6, 3), Gap(PUBLISHER_ID, 0, 4)],
)
async def test_an_unknown_publisher_and_what_is_not_there_get_the_end_marker_only(
    context: Context, gap: Gap
) -> None:
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(10, first=5)})
        answer = await ask(context, endpoint, request_frames(gap))
        serving.cancel_scope.cancel()
    assert answer == [end_marker(gap.publisher_id)]


async def test_what_is_no_request_gets_no_answer_and_hurts_nobody(context: Context) -> None:
    good = request_frames(Gap(PUBLISHER_ID, 0, 0))
    bad = [[b"hello"], [b"", b"", b"", b""], good[:3], [*good, b""], [b"x", *good[1:]]]
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(1)})
        answer = await ask(context, endpoint, *bad, good)
        serving.cancel_scope.cancel()
    assert len(answer) == 2


async def test_a_frame_too_long_for_a_request_ends_that_connection_only(context: Context) -> None:
    good = request_frames(Gap(PUBLISHER_ID, 0, 0))
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(1)})
        with open_dealer(context) as intruder:
            intruder.connect(endpoint)
            intruder.send_multipart([b"", bytes(1 << 20), good[2], good[3]])
            assert len(await ask(context, endpoint, good)) == 2
        serving.cancel_scope.cancel()


async def test_an_answer_is_bounded_and_the_reader_asks_again_for_the_rest(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "ANSWER_MESSAGES", 4)
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(10)})
        answer = await ask(context, endpoint, request_frames(Gap(PUBLISHER_ID, 0, 9)))
        assert len(answer) == 5
        delivered, settled = await fill(context, endpoint, Gap(PUBLISHER_ID, 0, 9))
        serving.cancel_scope.cancel()
    assert delivered == list(range(10))
    assert settled == [Gap(PUBLISHER_ID, 0, 9)]


async def test_an_answer_is_bounded_in_bytes_too(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "ANSWER_BYTES", 1)
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(10)})
        answer = await ask(context, endpoint, request_frames(Gap(PUBLISHER_ID, 0, 9)))
        serving.cancel_scope.cancel()
    assert len(answer) == 2


async def fill(context: Context, endpoint: str, *gaps: Gap) -> tuple[list[int], list[Gap]]:
    """Ask for *gaps*, and return the sequences that came and the gaps that were settled."""
    delivered: list[int] = []
    settled: list[Gap] = []

    async def deliver(found: list[Message]) -> None:
        await trio.lowlevel.checkpoint()
        delivered.extend(message.envelope.sequence for message in found)

    async def settle(gap: Gap) -> None:
        await trio.lowlevel.checkpoint()
        settled.append(gap)

    send, receive = trio.open_memory_channel[Gap](len(gaps))
    with send:
        for gap in gaps:
            send.send_nowait(gap)
    with trio.fail_after(10):
        await fill_gaps(context, endpoint, receive, deliver, settle)
    return delivered, settled


async def test_each_gap_is_settled_after_what_could_be_had_of_it(context: Context) -> None:
    gaps = [Gap(PUBLISHER_ID, 0, 6), Gap(99, 0, 1), Gap(PUBLISHER_ID, 8, 20)]
    async with trio.open_nursery() as serving:
        endpoint = await serving.start(serve, context, {PUBLISHER_ID: buffer_of(10, first=5)})
        delivered, settled = await fill(context, endpoint, *gaps)
        serving.cancel_scope.cancel()
    assert delivered == [5, 6, 8, 9]
    assert settled == gaps


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "tcp://nonsense", "what?"])
async def test_a_service_that_is_not_there_settles_the_gap_within_its_time(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "SILENCE_SECONDS", 0.05)
    gap = Gap(PUBLISHER_ID, 0, 5)
    assert await fill(context, endpoint, gap) == ([], [gap])


async def test_a_service_that_never_comes_to_an_end_is_cut_off(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 23: a bounded time, whatever it sends; and what is not of the gap is dropped."""
    monkeypatch.setattr(gap_filling, "FILL_SECONDS", 0.2)
    stored = messages(5, publisher_id=PUBLISHER_ID)
    foreign = messages(5, publisher_id=99)
    gap = Gap(PUBLISHER_ID, 2, 3)

    async def babble(router: zmq.Socket[bytes]) -> None:
        peer, *_ = await receive_frames(router)
        while True:
            for frames in (*stored, *foreign, (b"shadow", b"", b"", b"")):
                router.send_multipart([peer, b"", *frames], zmq.DONTWAIT)
            await trio.sleep(0.01)

    bound = bind_router(context, "127.0.0.1", None, high_water_mark=100, longest_request=1024)
    async with trio.open_nursery() as babbling:
        babbling.start_soon(babble, bound.socket)
        delivered, settled = await fill(context, f"tcp://127.0.0.1:{bound.port}", gap)
        babbling.cancel_scope.cancel()
    bound.socket.close(linger=0)
    assert (delivered, settled) == ([], [gap])


async def test_messages_out_of_order_and_twice_are_put_right(context: Context) -> None:
    stored = messages(6, publisher_id=PUBLISHER_ID)

    async def answer(router: zmq.Socket[bytes]) -> None:
        peer, *_ = await receive_frames(router)
        for number in (4, 2, 4, 0, 3, 2, 5):
            router.send_multipart([peer, b"", *stored[number]])
        router.send_multipart([peer, *end_marker(PUBLISHER_ID)])

    bound = bind_router(context, "127.0.0.1", None, high_water_mark=100, longest_request=1024)
    async with trio.open_nursery() as answering:
        answering.start_soon(answer, bound.socket)
        delivered, _ = await fill(context, f"tcp://127.0.0.1:{bound.port}", Gap(PUBLISHER_ID, 2, 4))
    bound.socket.close(linger=0)
    assert delivered == [2, 3, 4]
