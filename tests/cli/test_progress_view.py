"""What a person sees of a run while it goes."""

import io

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from replay.cli.progress_view import RunView, show_lines, show_live
from replay.player.feed import ReadAhead
from replay.player.observation import Observation, Outcome
from replay.player.play import Player, PlaySettings
from replay.player.targets import Clock
from tests.player.targets import FakeTarget


def view_of_a_run(*, seconds: float, fraction: float | None) -> RunView:
    """Return the view of a run that began so long ago, with three requests behind it."""
    player = Player(
        FakeTarget(),
        ReadAhead(iter(())),
        vocab_size=1000,
        settings=PlaySettings(),
        on_result=lambda _: None,
    )
    player.clock = Clock(trio.current_time, trio.current_time() - seconds)
    for number in range(3):
        player.progress.started()
        if number < 2:
            outcome = Outcome.COMPLETE if number else Outcome.ERROR
            sent_ns = number * 50_000_000
            player.progress.ended(
                Observation(
                    request_id="r",
                    outcome=outcome,
                    error="UNAVAILABLE" if outcome is Outcome.ERROR else None,
                    scheduled_ns=0,
                    sent_ns=sent_ns,
                )
            )
    return RunView(player=player, fraction=lambda: fraction)


async def test_a_view_tells_counts_rates_and_what_is_left(autojump_clock: MockClock) -> None:
    numbers = view_of_a_run(seconds=90.0, fraction=0.25).numbers()
    assert numbers == {
        "sent": "3",
        "in flight": "1",
        "late": "1",
        "complete": "1",
        "error": "1",
        "requests/s": "0.0",
        "tokens/s": "0.0",
        "time": "1:30",
        "left": "about 4:30",
        "error UNAVAILABLE": "1",
    }


async def test_what_is_left_is_not_guessed_where_nothing_is_known(
    autojump_clock: MockClock,
) -> None:
    assert view_of_a_run(seconds=90.0, fraction=None).numbers()["left"] == "\N{EN DASH}"
    assert view_of_a_run(seconds=0.5, fraction=0.1).numbers()["left"] == "\N{EN DASH}"


async def test_a_terminal_shows_the_last_state_when_the_run_ends() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    view = view_of_a_run(seconds=3_700.0, fraction=0.5)
    with trio.move_on_after(0.4):
        await show_live(view, console)
    assert "in flight" in output.getvalue()
    assert "1:01:40" in output.getvalue()


async def test_elsewhere_a_line_comes_now_and_then(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.move_on_after(11):
        await show_lines(view_of_a_run(seconds=1.0, fraction=None))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "sent: 3  in flight: 1" in lines[0]
