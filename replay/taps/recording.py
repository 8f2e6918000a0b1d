"""One request on its way past the taps: watched as it passes, recorded when it is over.

Everything is synchronous: a cancelled scope cannot wait, and a record must not depend on it.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from replay.taps.recorder import Recorder
from replay.taps.tap import MirroredRequest, Tap


class Recording:
    """A recording of nothing: no tap wanted the request.  Also what a recording can be told.

    It is entered before the request goes on and left when the request is over.  Leaving it without
    `end` says that the stream was dropped, or with an Exception that the engine's call failed.
    """

    __slots__ = ()

    #: Whether anybody wants to know about the response.
    is_recording = False

    def observe(self, ids: Sequence[int], index: int = 0, finish_reason: str | None = None) -> None:
        """Take note of a chunk of choice *index* as it passes to the client.

        *finish_reason* is in the words of a record, as `replay.taps.finish_reasons` makes them.
        Raises `OverflowError` or `TypeError` for what is no unsigned 32-bit id.
        """

    def observe_whole(self, ids: Sequence[int], finish_reason: str) -> None:
        """Take note of a whole answer of the only choice, which left at once in a chunk a token."""

    def fail(self) -> None:
        """Take note that the request failed, or the stream did without naming a choice."""

    def end(self) -> None:
        """Take note that the stream came to its normal end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


#: The one recording of nothing.
NOT_RECORDED = Recording()


class TapRecording(Recording):
    """A recording for at least one tap."""

    __slots__ = (
        "_arrival_ns",
        "_clock_ns",
        "_ended",
        "_expected_choices",
        "_is_cancelled",
        "_joined",
        "_plain",
        "_recorders",
        "is_recording",
    )

    def __init__(
        self,
        *,
        plain: Sequence[tuple[Tap, MirroredRequest]],
        joined: Sequence[tuple[Tap, MirroredRequest, Recorder]],
        recorders: Sequence[Recorder],
        expected_choices: int,
        arrival_monotonic_ns: int,
        is_cancelled: Callable[[], bool],
        clock_ns: Callable[[], int],
    ) -> None:
        """Record for the *plain* taps the request alone and for the *joined* ones all of it.

        *recorders* are those of *joined*, each once: taps that remember the same share one.
        """
        self._plain = plain
        self._joined = joined
        self._recorders = recorders
        self._expected_choices = expected_choices
        # A clock that the caller reads elsewhere may be a little ahead: no offset is below 0.
        self._arrival_ns = min(arrival_monotonic_ns, clock_ns())
        self._is_cancelled = is_cancelled
        self._clock_ns = clock_ns
        self._ended = False
        self.is_recording = bool(joined)

    def observe(self, ids: Sequence[int], index: int = 0, finish_reason: str | None = None) -> None:
        """Take note of a chunk of choice *index* as it passes to the client."""
        offset_ns = self._clock_ns() - self._arrival_ns
        for recorder in self._recorders:
            recorder.tokens(ids, index, offset_ns)
            if finish_reason is not None:
                recorder.finish(finish_reason, index)

    def observe_whole(self, ids: Sequence[int], finish_reason: str) -> None:
        """Take note of a whole answer of the only choice, which left at once in a chunk a token."""
        offset_ns = self._clock_ns() - self._arrival_ns
        for recorder in self._recorders:
            recorder.tokens(ids, 0, offset_ns, chunks=len(ids))
            recorder.finish(finish_reason, 0)

    def fail(self) -> None:
        """Take note that the request failed, or the stream did without naming a choice."""
        for recorder in self._recorders:
            recorder.error()

    def end(self) -> None:
        """Take note that the stream came to its normal end."""
        self._ended = True

    def __enter__(self) -> Self:
        for tap, mirrored in self._plain:
            tap.offer(mirrored, None, queued_ns=self._arrival_ns)
        for tap, _, recorder in self._joined:
            tap.open_recorders.add(recorder)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Queue exactly one joined record for each joined tap."""
        if not self._joined:
            return
        if exc_type is not None and issubclass(exc_type, Exception) and not self._ended:
            # Whether it counts is for the outcome to say: an error after a cancel is a cancel.
            self.fail()
        now_ns = self._clock_ns()
        is_cancelled = self._is_cancelled()
        responses = {
            recorder: recorder.response(
                expected_choices=self._expected_choices,
                ended=self._ended,
                is_cancelled=is_cancelled,
                end_offset_ns=now_ns - self._arrival_ns,
            )
            for recorder in self._recorders
        }
        for tap, mirrored, recorder in self._joined:
            response = responses[recorder]
            tap.open_recorders.discard(recorder)
            tap.outcomes[response.outcome] += 1
            tap.offer(mirrored, response, queued_ns=now_ns)
