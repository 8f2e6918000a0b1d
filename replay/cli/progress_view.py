"""Shows how a run goes: a live block on a terminal, a line now and then elsewhere."""

from collections.abc import Callable
from typing import Any, Protocol

import attrs
import click
import trio
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from replay.player.play import Player
from replay.player.wording import UNKNOWN, count

#: A person sees four pictures a second as motion; a log is read line by line.
_LIVE_SECONDS = 0.25
_LINE_SECONDS = 5.0


class View(Protocol):
    """Something that is shown while it goes on."""

    def numbers(self) -> dict[str, str]:
        """Return what is shown, by its name."""
        ...


@attrs.frozen(kw_only=True)
class RunView:
    """What is shown of a run."""

    player: Player
    fraction: Callable[[], float | None]
    """Which part of the source has been read; None: not known."""
    report: Callable[[], dict[str, Any] | None] = lambda: None
    """What a live topic has brought."""

    def numbers(self) -> dict[str, str]:
        """Return what is shown, by its name."""
        progress, clock = self.player.progress, self.player.clock
        seconds = 0.0 if clock is None else trio.current_time() - clock.started
        fraction = self.fraction()
        left = None
        if fraction and seconds > 1:
            left = seconds * (1 - fraction) / fraction
        came = self.report()
        numbers = (
            {}
            if came is None
            else {
                "records": count(came["records"]),
                "lost on the way": count(came["tap_gaps"]),
            }
        )
        numbers |= {
            "sent": count(progress.sent),
            "in flight": count(progress.in_flight),
            "late": count(progress.late),
            **{word.replace("_", " "): count(n) for word, n in sorted(progress.outcomes.items())},
            "requests/s": _rate(progress.sent, seconds),
            "tokens/s": _rate(progress.output_tokens, seconds),
            "time": _duration(seconds),
            "left": UNKNOWN if left is None else f"about {_duration(left)}",
        }
        for label, number in progress.errors.most_common(3):
            numbers[f"error {label}"] = count(number)
        return numbers


def show(progress: str, view: View, helpers: trio.Nursery) -> None:
    """Show *view* as *progress* asks for, until *helpers* are cancelled."""
    console = Console(stderr=True)
    if progress == "live" or (progress == "auto" and console.is_terminal):
        helpers.start_soon(show_live, view, console)
    elif progress != "none":
        helpers.start_soon(show_lines, view)


async def show_live(view: View, console: Console) -> None:
    """Keep a block on the terminal up to date until cancelled, and leave its last state there."""
    limiter = trio.CapacityLimiter(1)
    # Live's own thread would read the counters while they change, and write when it likes.
    with Live(
        console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:
        try:
            while True:
                picture = _table(view)
                # A terminal that is stopped (Ctrl-S) blocks its writer, not the run.
                await trio.to_thread.run_sync(
                    _draw, live, picture, limiter=limiter, abandon_on_cancel=True
                )
                await trio.sleep(_LIVE_SECONDS)
        finally:
            live.update(_table(view))


def _draw(live: Live, picture: RenderableType) -> None:
    live.update(picture, refresh=True)


async def show_lines(view: View) -> None:
    """Print a line now and then until cancelled."""
    while True:
        await trio.sleep(_LINE_SECONDS)
        click.echo(
            "  ".join(f"{name}: {value}" for name, value in view.numbers().items()), err=True
        )


def _table(view: View) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, value in view.numbers().items():
        table.add_row(name, value)
    return table


def _rate(number: int, seconds: float) -> str:
    return UNKNOWN if seconds <= 0 else f"{number / seconds:,.1f}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
