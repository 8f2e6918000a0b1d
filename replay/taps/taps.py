"""All taps of a runtime, and the one place at which a request meets them (rules 26 to 36)."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import trio

from replay.config.model import TapConfig
from replay.engines.base import Generation, Model
from replay.packed import IDS_AT_ONCE, TokenIds
from replay.request import Request
from replay.taps.filters import Projection, has_media
from replay.taps.from_generate import from_generate, has_inputs, is_probe
from replay.taps.metadata import MetadataAllowList
from replay.taps.recorder import Recorder, RecordingBounds
from replay.taps.recording import NOT_RECORDED, Recording, TapRecording
from replay.taps.tap import MirroredRequest, Tap


def _never_cancelled() -> bool:
    return False


async def _pack_in_turns(ids: Sequence[int]) -> TokenIds:
    packing = TokenIds.packing_in_pieces(ids)
    while True:
        try:
            next(packing)
        except StopIteration as done:
            packed: TokenIds = done.value
            return packed
        await trio.lowlevel.cancel_shielded_checkpoint()


class _Place(NamedTuple):
    """A tap, and what it shares with others."""

    tap: Tap
    projection: int
    """Number of its projection among the distinct ones."""
    recorder: int
    """Number of its recorder among the distinct ones; below 0: none."""


class Taps:
    """The taps of one runtime.  All of it on the loop's thread."""

    def __init__(
        self,
        configs: Iterable[TapConfig],
        *,
        metadata_allow: Iterable[str] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Make the taps; nothing publishes yet.

        *metadata_allow* are globs over the names of gRPC metadata that a record may show.
        """
        self._taps = tuple(map(Tap, configs))
        self._allowed = MetadataAllowList(metadata_allow)
        self._clock_ns = clock_ns
        self._projections: list[Projection] = []
        self._bounds: list[RecordingBounds] = []
        self._owners: list[Tap | None] = []
        self._places = tuple(map(self._place, self._taps))

    def __iter__(self) -> Iterator[Tap]:
        return iter(self._taps)

    def __len__(self) -> int:
        return len(self._taps)

    def record(
        self,
        request: Request,
        *,
        request_id: str | None = None,
        origin: str = "preprocessed",
        arrival_unix_ns: int | None = None,
        arrival_monotonic_ns: int | None = None,
        is_cancelled: Callable[[], bool] = _never_cancelled,
    ) -> Recording:
        """Return the recording of *request*, to be entered before the request goes on.

        *request_id* is made up if there is none; the arrival is now unless it is given, with
        *arrival_monotonic_ns* as `time.monotonic_ns` has it.  *is_cancelled* is asked at the end:
        with it an error that follows a cancel counts as the cancel.
        """
        if request.is_probe:
            return NOT_RECORDED
        if request_id is None:
            request_id = str(uuid.uuid4())
        wanting = self._wanting(
            request.model, len(request.token_ids), has_media(request), request_id
        )
        if not wanting:
            return NOT_RECORDED
        return self._recording(
            wanting,
            request,
            request_id=request_id,
            origin=origin,
            expected_choices=request.expected_choices,
            arrival_unix_ns=arrival_unix_ns,
            arrival_monotonic_ns=arrival_monotonic_ns,
            is_cancelled=is_cancelled,
        )

    async def record_generate(
        self,
        generation: Generation,
        model: Model,
        *,
        arrival_unix_ns: int | None = None,
        arrival_monotonic_ns: int | None = None,
        is_cancelled: Callable[[], bool] = _never_cancelled,
    ) -> Recording:
        """Return the recording of a worker's request, as `record` does.

        A `Request` is only made if a tap wants it.  Other requests get their turns while a long
        prompt is packed, and a cancel waits until it is: also a request that is cancelled here has
        its records.
        """
        message = generation.message
        request_id = generation.request_id
        if is_probe(request_id, generation.metadata):
            return NOT_RECORDED  # before the filters: they count what they skip
        wanting = self._wanting(
            model.name, generation.prompt_tokens, has_inputs(message), request_id
        )
        if not wanting:
            return NOT_RECORDED
        ids = message.tokenized.input_ids
        request = from_generate(
            message,
            model=model,
            token_ids=await _pack_in_turns(ids) if len(ids) > IDS_AT_ONCE else None,
            metadata_allowed=self._allowed.of(generation.metadata),
        )
        return self._recording(
            wanting,
            request,
            request_id=request_id,
            origin="preprocessed",
            expected_choices=generation.choices,
            arrival_unix_ns=arrival_unix_ns,
            arrival_monotonic_ns=arrival_monotonic_ns,
            is_cancelled=is_cancelled,
        )

    def _wanting(
        self, model: str, prompt_tokens: int, has_media: bool, request_id: str
    ) -> list[_Place]:
        wanting = []
        for place in self._places:
            tap = place.tap
            if tap.selects and not tap.selection.passes(
                model=model,
                prompt_tokens=prompt_tokens,
                has_media=has_media,
                request_id=request_id,
            ):
                tap.skipped += 1
            else:
                wanting.append(place)
        return wanting

    def _recording(
        self,
        wanting: Sequence[_Place],
        request: Request,
        *,
        request_id: str,
        origin: str,
        expected_choices: int,
        arrival_unix_ns: int | None,
        arrival_monotonic_ns: int | None,
        is_cancelled: Callable[[], bool],
    ) -> Recording:
        # Rule 36: one arrival for all taps.
        if arrival_unix_ns is None:
            arrival_unix_ns = time.time_ns()
        if arrival_monotonic_ns is None:
            arrival_monotonic_ns = self._clock_ns()
        copies: dict[int, MirroredRequest] = {}
        recorders: dict[int, Recorder] = {}
        plain: list[tuple[Tap, MirroredRequest]] = []
        joined: list[tuple[Tap, MirroredRequest, Recorder]] = []
        for tap, projection, number in wanting:
            copy = copies.get(projection)
            if copy is None:
                # Packed here: from now on nothing of it can change, and its size is known.
                copy = copies[projection] = MirroredRequest(
                    request_id, origin, arrival_unix_ns, self._projections[projection].pack(request)
                )
            if number < 0:
                plain.append((tap, copy))
                continue
            recorder = recorders.get(number)
            if recorder is None:
                recorder = recorders[number] = Recorder(self._bounds[number], tap.budget)
            joined.append((tap, copy, recorder))
        return TapRecording(
            plain=plain,
            joined=joined,
            recorders=tuple(recorders.values()),
            expected_choices=expected_choices,
            arrival_monotonic_ns=arrival_monotonic_ns,
            is_cancelled=is_cancelled,
            clock_ns=self._clock_ns,
        )

    def _place(self, tap: Tap) -> _Place:
        """Find out what *tap* shares with those before it."""
        if tap.projection not in self._projections:
            self._projections.append(tap.projection)
        projection = self._projections.index(tap.projection)
        if tap.bounds is None:
            return _Place(tap, projection, -1)
        # A tap with a budget of its own remembers for itself: what the budget refuses is its loss.
        owner = tap if tap.budget is not None else None
        for number, key in enumerate(zip(self._bounds, self._owners, strict=True)):
            if key == (tap.bounds, owner):
                return _Place(tap, projection, number)
        self._bounds.append(tap.bounds)
        self._owners.append(owner)
        return _Place(tap, projection, len(self._bounds) - 1)
