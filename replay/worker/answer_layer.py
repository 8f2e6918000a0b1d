"""An answer over an answer: what a layer between a worker and its engine looks through."""

from collections.abc import Iterable, Sequence

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer


class AnswerLayer:
    """Passes everything on to *answer*; implements `replay.engines.base.Answer`."""

    def __init__(self, answer: Answer) -> None:
        self._below = answer

    @property
    def is_open(self) -> bool:
        """Whether anybody still wants tokens."""
        return self._below.is_open

    def set_cached_tokens(self, count: int) -> None:
        """Say how many prompt tokens came out of a cache."""
        self._below.set_cached_tokens(count)

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        """Put the next tokens of choice *index*."""
        self._below.tokens(ids, index)

    def finish(
        self,
        reason: str,
        index: int = 0,
        *,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        """End choice *index*."""
        self._below.finish(
            reason, index, matched=matched, spec_accepted=spec_accepted, spec_draft=spec_draft
        )

    def fail(self, message: str, index: int = 0) -> None:
        """End choice *index* as failed."""
        self._below.fail(message, index)

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        """Put a whole answer of one choice."""
        self._below.whole(ids, reason, matched=matched)

    def respond(self, metadata: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the initial headers."""
        self._below.respond(metadata)

    def set_trailing_metadata(self, metadata: Sequence[tuple[bytes, bytes]]) -> None:
        """Say what the trailers will have beside the status."""
        self._below.set_trailing_metadata(metadata)

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        """Pass on a response that is already made."""
        self._below.forward(response, packed)

    @property
    def is_full(self) -> bool:
        """Whether `room` would wait."""
        return self._below.is_full

    async def room(self) -> None:
        """Wait until the client has read enough to take more."""
        await self._below.room()
