"""Runs against targets that answer by themselves, on a clock that jumps."""

import threading
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pytest
import trio
from targets import FakeTarget
from trio.testing import MockClock, wait_all_tasks_blocked

from replay.player.answer_log import AnswerLog
from replay.player.arrival import (
    Arrival,
    BlockPrompt,
    ChatPrompt,
    LengthPrompt,
    TextPrompt,
    TokenPrompt,
)
from replay.player.feed import AHEAD, ReadAhead
from replay.player.observation import Observation, Outcome
from replay.player.outgoing import Fill, Outgoing, Speaks
from replay.player.play import Player, PlaySettings, RunEnd
from replay.player.schedule import Planned, constant, original, unpaced
from replay.player.sessions import OnFailure
from replay.player.targets import Clock, Packed
from replay.player.traces.fault import TraceError

MS = 1_000_000
SECOND = 1_000_000_000


def arrival(number: int, *, offset_ns: int | None = 0, **values: Any) -> Arrival:
    defaults: dict[str, Any] = {
        "request_id": f"r{number}",
        "prompt": TokenPrompt(array("I", (1, 2, 3))),
        "stream": True,
    }
    return Arrival(position=number, offset_ns=offset_ns, **(defaults | values))


def turn(session: str, number: int, *, think_ns: int = SECOND, **values: Any) -> Arrival:
    return arrival(
        number,
        **{
            "request_id": f"{session}{number}",
            "session": session,
            "turn": number,
            "offset_ns": None if number else 0,
            "think_ns": think_ns if number else None,
        }
        | values,
    )


@attrs.define
class Run:
    """A finished run."""

    end: RunEnd
    player: Player
    results: list[Observation]

    def outcomes(self) -> dict[str, int]:
        return dict(self.player.progress.outcomes)


async def played(
    target: FakeTarget,
    plan: Iterable[Planned],
    *,
    settings: PlaySettings | None = None,
    stop_after: float | None = None,
    quit_after: float | None = None,
) -> Run:
    """Play *plan*, stopping it after so many seconds of the run."""
    results: list[Observation] = []
    feed = ReadAhead(iter(plan))
    player = Player(
        target,
        feed,
        vocab_size=1000,
        settings=settings or PlaySettings(),
        on_result=results.append,
    )
    stop, quit_now = trio.Event(), trio.Event()

    async def set_after(event: trio.Event, seconds: float | None) -> None:
        if seconds is not None:
            # The clock does not wait for threads: it would jump while the source is read.
            await feed.wait_filled()
            await trio.sleep(seconds)
            event.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(set_after, stop, stop_after)
        nursery.start_soon(set_after, quit_now, quit_after)
        end = await player.run(stop=stop, quit_now=quit_now)
        nursery.cancel_scope.cancel()
    return Run(end, player, results)


async def test_requests_leave_at_their_deadlines(autojump_clock: MockClock) -> None:
    target = FakeTarget()
    rows = [arrival(at, offset_ns=at * 250 * MS) for at in range(9)]
    run = await played(target, original(rows))
    assert [moment for moment, _ in target.sent] == pytest.approx([at * 0.25 for at in range(9)])
    assert [each.schedule_delay_ns for each in run.results] == [0] * 9
    assert run.outcomes() == {"complete": 9}
    assert (run.end.reason, run.end.seconds) == ("done", 2.0)


async def test_what_is_due_at_one_moment_leaves_in_the_order_of_the_source(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget()
    await played(target, original(arrival(at, offset_ns=at // 50 * SECOND) for at in range(200)))
    assert target.ids == [f"r{at}" for at in range(200)]


@pytest.mark.timed
async def test_what_is_due_at_once_is_made_ready_before_the_run_begins() -> None:
    """On a real clock: preparing a prompt of four million tokens takes longer than a moment."""
    prompts = [LengthPrompt(length=4 << 20, own=1), LengthPrompt(length=4, own=2)]
    run = await played(
        FakeTarget(seconds=0.0), original(arrival(at, prompt=prompts[at]) for at in range(2))
    )
    delays = [each.schedule_delay_ns or 0 for each in run.results]
    assert abs(delays[0] - delays[1]) < 5 * MS


async def test_long_streams_hold_no_later_arrival_up(autojump_clock: MockClock) -> None:
    """600 streams of ten seconds at 100 a second: a pool would be full after a moment."""
    target = FakeTarget(seconds=10.0)
    run = await played(target, constant((arrival(at) for at in range(600)), rate=100.0))
    assert target.most_in_flight == 600
    assert {each.schedule_delay_ns for each in run.results} == {0}


async def test_what_came_is_measured_from_the_moment_it_was_sent(autojump_clock: MockClock) -> None:
    run = await played(
        FakeTarget(seconds=2.0), original([arrival(1), arrival(2, offset_ns=SECOND)])
    )
    for each in run.results:
        assert (each.ttft_ns, each.e2e_ns, each.tpot_ns) == (0, 2 * SECOND, 2 * SECOND)
        assert each.choices[0].token_ids == array("I", (1, 2))


async def test_no_request_is_an_empty_run(autojump_clock: MockClock) -> None:
    run = await played(FakeTarget(), original([]))
    assert (run.results, run.end.reason, run.end.seconds) == ([], "done", 0.0)


# ---- cancelling


def cancelled_at(offset_ns: int) -> Observation:
    return Observation(request_id="x", outcome=Outcome.CANCELLED, end_offset_ns=offset_ns)


async def test_a_cancelled_request_is_cancelled_at_its_recorded_offset(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget(seconds=5.0)
    rows = [arrival(1, recorded=cancelled_at(3 * SECOND)), arrival(2)]
    run = await played(target, original(rows))
    by_id = {each.request_id: each for each in run.results}
    assert by_id["r1"].outcome is Outcome.CANCELLED
    assert by_id["r1"].end_offset_ns == 3 * SECOND
    assert by_id["r1"].error is None
    assert by_id["r2"].outcome is Outcome.COMPLETE
    assert target.taken_back == 1


async def test_a_cancelled_request_may_be_played_to_its_end(autojump_clock: MockClock) -> None:
    rows = [arrival(1, recorded=cancelled_at(3 * SECOND))]
    run = await played(FakeTarget(5.0), original(rows), settings=PlaySettings(cancels=False))
    assert run.outcomes() == {"complete": 1}


# ---- what is missing


async def test_a_request_that_lacks_something_is_refused_and_the_others_are_sent(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget()
    rows = [
        arrival(1, missing=("mm_inputs",)),
        arrival(2, prompt=None, missing=("prompt",)),
        arrival(3, prompt=TextPrompt("text")),
        arrival(4),
    ]
    run = await played(target, original(rows))
    assert target.ids == ["r4"]
    reasons = {each.request_id: each.error for each in run.results}
    assert reasons["r1"] == "lacks mm_inputs"
    assert reasons["r2"] == "lacks prompt"
    assert reasons["r3"] == "lacks token ids"
    assert run.player.progress.refused == 3
    assert run.outcomes() == {"complete": 1, "not_sent": 3}


async def test_a_value_that_cannot_be_sent_refuses_its_request_only(
    autojump_clock: MockClock,
) -> None:
    class Strict(FakeTarget):
        def pack(self, outgoing: Any) -> Any:
            if outgoing.request_id == "r1":
                raise ValueError("n: the value does not fit the wire")
            return super().pack(outgoing)

    run = await played(Strict(), original([arrival(1), arrival(2)]))
    assert run.outcomes() == {"complete": 1, "not_sent": 1}
    assert {each.error for each in run.results} == {None, "n: the value does not fit the wire"}


async def test_what_is_missing_is_filled_and_marked_when_asked_for(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget()
    recorded = Observation(request_id="r2", prompt_tokens=7)
    rows = [
        arrival(1, missing=("mm_inputs",)),
        arrival(2, prompt=None, missing=("prompt",), recorded=recorded),
        arrival(3, stream=None),
    ]
    run = await played(target, original(rows), settings=PlaySettings(fill=Fill.SYNTHETIC))
    filled = {each.request_id: each.filled for each in run.results}
    assert filled == {"r1": ("mm_inputs",), "r2": ("prompt",), "r3": ("stream",)}
    lengths = {sent.request_id: len(sent.ids or ()) for _, sent in target.sent}
    assert lengths == {"r1": 3, "r2": 7, "r3": 3}


async def test_prompts_of_traces_are_made_up_to_their_length_and_marked(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget()
    block = BlockPrompt(hash_ids=(5, 6), length=20, block_size=16, own=1)
    rows = [arrival(1, prompt=block), arrival(2, prompt=LengthPrompt(length=9, own=2))]
    run = await played(target, original(rows))
    assert [len(sent.ids or ()) for _, sent in target.sent] == [20, 9]
    assert {each.filled for each in run.results} == {("prompt",)}


# ---- ends


async def test_a_stop_lets_what_is_in_flight_end_and_reports_the_rest_as_not_sent(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget(seconds=2.0)
    rows = [arrival(at, offset_ns=at * SECOND) for at in range(10)]
    run = await played(target, original(rows), stop_after=3.5)
    assert target.ids == ["r0", "r1", "r2", "r3"]
    assert run.outcomes() == {"complete": 4, "not_sent": 6}
    assert (run.end.reason, run.end.not_read, run.end.is_counted) == ("stopped", 0, True)


async def test_what_is_in_flight_too_long_after_a_stop_is_cancelled_and_reported(
    autojump_clock: MockClock,
) -> None:
    target = FakeTarget(seconds=100.0)
    rows = [arrival(at, offset_ns=at * SECOND) for at in range(10)]
    settings = PlaySettings(drain_seconds=3.0)
    run = await played(target, original(rows), settings=settings, stop_after=0.5)
    assert trio.current_time() < 10
    assert run.outcomes() == {"cancelled": 1, "not_sent": 9}
    [cut] = [each for each in run.results if each.outcome is Outcome.CANCELLED]
    assert cut.error == "the run ended"


async def test_a_second_stop_ends_at_once_and_still_reports_everything(
    autojump_clock: MockClock,
) -> None:
    rows = [arrival(at, offset_ns=at * SECOND) for at in range(10)]
    run = await played(FakeTarget(100.0), original(rows), stop_after=3.5, quit_after=4.0)
    assert trio.current_time() < 7
    assert run.outcomes() == {"cancelled": 4, "not_sent": 6}
    for quit_after in (0.0, 3.5):
        run = await played(FakeTarget(100.0), original(rows), quit_after=quit_after)
        assert sum(run.outcomes().values()) == 10
        assert run.end.reason == "stopped"


@attrs.define
class TargetWithANursery(FakeTarget):
    """Waits in a nursery, as connecting to a name does: a cancellation leaves it in a group."""

    def pack(self, outgoing: Outgoing) -> Packed:
        return _WaitsInANursery(super().pack(outgoing))


@attrs.frozen
class _WaitsInANursery:
    packed: Packed

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        async with trio.open_nursery() as connecting:
            connecting.start_soon(trio.sleep_forever)
            await self.packed.send(log, clock)


async def test_what_is_cancelled_inside_of_a_nursery_is_reported_too(
    autojump_clock: MockClock,
) -> None:
    rows = [arrival(at) for at in range(10)]
    run = await played(TargetWithANursery(100.0), original(rows), quit_after=1.0)
    assert run.outcomes() == {"cancelled": 10}


async def test_a_run_ends_on_time_during_a_long_pause(autojump_clock: MockClock) -> None:
    target = FakeTarget()
    rows = [arrival(1), arrival(2, offset_ns=3_600 * SECOND)]
    run = await played(target, original(rows), settings=PlaySettings(max_seconds=10.0))
    assert trio.current_time() < 20
    assert run.end.reason == "time is up"
    assert run.outcomes() == {"complete": 1, "not_sent": 1}


async def test_the_rest_of_a_source_that_was_not_read_is_counted() -> None:
    rows = (arrival(at, offset_ns=at * SECOND) for at in range(AHEAD + 1_000))
    run = await played(FakeTarget(0.0), original(rows), stop_after=0.0)
    assert sum(run.outcomes().values()) + run.end.not_read == AHEAD + 1_000
    assert run.end.not_read > 0
    assert run.end.is_counted


async def test_a_source_that_is_wrong_ends_the_run_after_what_came_before(
    autojump_clock: MockClock,
) -> None:
    def rows() -> Iterator[Arrival]:
        yield from (arrival(at, offset_ns=at * SECOND) for at in range(3))
        raise TraceError(4, "is wrong")

    run = await played(FakeTarget(), original(rows()))
    assert run.end.reason == "source"
    assert run.outcomes() == {"complete": 3}


# ---- sessions and closed loops


async def test_turns_wait_for_the_answer_before_them_and_think(autojump_clock: MockClock) -> None:
    target = FakeTarget(seconds=2.0)
    rows = [
        turn("a", 0),
        turn("b", 0),
        turn("a", 1),
        turn("b", 1, think_ns=5 * SECOND),
        turn("a", 2),
    ]
    run = await played(target, original(rows))
    moments = {sent.request_id: moment for moment, sent in target.sent}
    assert moments == pytest.approx({"a0": 0, "b0": 0, "a1": 3, "a2": 6, "b1": 7})
    assert run.outcomes() == {"complete": 5}


@pytest.mark.parametrize(
    ("on_failure", "sent"),
    [
        (OnFailure.END, ["a0", "b0", "b1"]),
        (OnFailure.CONTINUE, ["a0", "a1", "b0", "b1"]),
    ],
)
async def test_a_failed_turn_ends_or_continues_its_session(
    autojump_clock: MockClock, on_failure: OnFailure, sent: list[str]
) -> None:
    target = FakeTarget(failing=lambda outgoing: outgoing.request_id == "a0")
    rows = [turn("a", 0), turn("b", 0), turn("a", 1), turn("b", 1)]
    run = await played(target, original(rows), settings=PlaySettings(on_failure=on_failure))
    assert sorted(target.ids) == sent
    assert run.player.progress.errors == {"UNAVAILABLE": 1}
    abandoned = [each for each in run.results if each.outcome is Outcome.NOT_SENT]
    assert len(abandoned) == 4 - len(sent)
    assert all(each.error == "the turn before failed" for each in abandoned)


async def test_a_refused_turn_ends_its_session(autojump_clock: MockClock) -> None:
    target = FakeTarget()
    rows = [turn("a", 0, missing=("mm_inputs",)), turn("a", 1), turn("b", 0)]
    run = await played(target, original(rows))
    assert target.ids == ["b0"]
    assert run.outcomes() == {"complete": 1, "not_sent": 2}


async def test_a_closed_loop_keeps_its_number_in_flight(autojump_clock: MockClock) -> None:
    """40 sessions of 40 turns, ten at a time, with think times longer than the answers."""
    target = FakeTarget(seconds=1.0)
    rows = (
        turn(f"s{at}-", number, think_ns=3 * SECOND) for at in range(40) for number in range(40)
    )
    run = await played(target, unpaced(rows), settings=PlaySettings(concurrency=10))
    assert run.outcomes() == {"complete": 1_600}
    assert target.most_in_flight == 10
    assert run.end.seconds == pytest.approx(160, abs=2), "a place was free for some time"
    assert run.results[0].schedule_delay_ns is None
    for at in range(40):
        own = [name for name in target.ids if name.startswith(f"s{at}-")]
        assert own == [f"s{at}-{number}" for number in range(40)]


async def test_messages_follow_on_what_was_said(autojump_clock: MockClock) -> None:
    target = FakeTarget(speaks=Speaks.IDS_AND_TEXT)
    said = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    rows = [
        turn("a", number, prompt=ChatPrompt(messages=(message,), is_delta=True))
        for number, message in enumerate(said)
    ]
    await played(target, original(rows))
    answer = {"role": "assistant", "content": "answer to a0"}
    assert [sent.messages for _, sent in target.sent] == [
        (said[0],),
        (said[0], answer, said[1]),
    ]


async def test_a_run_shows_how_late_a_sleeper_was(autojump_clock: MockClock) -> None:
    run = await played(FakeTarget(), original([arrival(1)]))
    assert run.end.loop_delay_ms["p99"] == pytest.approx(0)


async def test_a_source_that_blocks_is_waited_for_and_can_be_left() -> None:
    """A pipe that nobody writes into: the run ends all the same."""
    gate = threading.Event()

    def rows() -> Iterator[Planned]:
        gate.wait(30)
        yield from ()

    target = FakeTarget()
    feed = ReadAhead(rows())
    player = Player(target, feed, vocab_size=1000, settings=PlaySettings(), on_result=print)
    stop = trio.Event()
    ends = []

    async def run() -> None:
        ends.append(await player.run(stop=stop, quit_now=stop))

    try:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await wait_all_tasks_blocked()
                stop.set()
    finally:
        gate.set()
    assert ends[0].reason == "stopped"
    assert not ends[0].is_counted
