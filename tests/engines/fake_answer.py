"""An answer that writes down what an engine puts into it, and when."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import FINISH_REASONS


@attrs.define
class FakeChoice:
    chunks: list[tuple[float, tuple[int, ...]]] = attrs.field(factory=list)
    """When each chunk came, and its ids."""
    reason: str | None = None
    matched: int | str | None = None
    spec: tuple[int, int] = (0, 0)
    failure: str | None = None
    ended_at: float | None = None

    @property
    def ids(self) -> list[int]:
        return [token for _, chunk in self.chunks for token in chunk]

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.chunks]


class FakeAnswer:
    """Keeps the rules of `Answer` and fails a test that breaks them."""

    def __init__(self, choices: int = 1, clock: Callable[[], float] = trio.current_time) -> None:
        self.choices: dict[int, FakeChoice] = defaultdict(FakeChoice)
        self.cached_tokens: int | None = None
        self.is_open = True
        self.has_headers = False
        """Whether an engine or a layer has sent them; else the worker has."""
        self.whole_calls = 0
        self.room_calls = 0
        self.gate: trio.Event | None = None
        """What `room` waits for: a client that does not read."""
        self._expected = choices
        self._clock = clock

    def __getitem__(self, index: int) -> FakeChoice:
        return self.choices[index]

    def set_cached_tokens(self, count: int) -> None:
        assert not any(choice.chunks for choice in self.choices.values()), "after a token"
        self.cached_tokens = count

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        assert 0 <= index < self._expected
        choice = self.choices[index]
        assert choice.ended_at is None, "tokens after the end"
        assert ids, "an empty chunk"
        choice.chunks.append((self._clock(), tuple(ids)))

    def finish(
        self,
        reason: str,
        index: int = 0,
        *,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        assert reason in FINISH_REASONS
        choice = self.choices[index]
        choice.reason, choice.matched, choice.spec = reason, matched, (spec_accepted, spec_draft)
        self._end(choice)

    def fail(self, message: str, index: int = 0) -> None:
        self.choices[index].failure = message
        self._end(self.choices[index])

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        assert self._expected == 1
        self.whole_calls += 1
        for token in ids:
            self.tokens((token,))
        self.finish(reason, matched=matched)

    def respond(self, metadata: Iterable[tuple[bytes, bytes]] = ()) -> None:
        assert not metadata, "a simulating engine has no metadata"
        self.has_headers = True

    def set_trailing_metadata(self, metadata: Sequence[tuple[bytes, bytes]]) -> None:
        raise AssertionError("a simulating engine has no metadata")

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        raise AssertionError("a simulating engine forwards nothing")

    @property
    def is_full(self) -> bool:
        return self.gate is not None and not self.gate.is_set()

    async def room(self) -> None:
        self.room_calls += 1
        if self.gate is not None:
            await self.gate.wait()

    def _end(self, choice: FakeChoice) -> None:
        assert choice.ended_at is None, "a second end"
        choice.ended_at = self._clock()
        self.is_open = sum(c.ended_at is not None for c in self.choices.values()) < self._expected
