"""An answer that fails, stalls or is held back at a place that was chosen for it."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer
from replay.worker.answer_layer import AnswerLayer


class GatedAnswer(AnswerLayer):
    """Lets an answer through until a fault hits it, or while it is not shut.

    After *fail_after* tokens of all choices together nothing passes any more, and *on_failed* is
    called.  After *stall_after* the rest is held until `go_on`.  What is held leaves in order, the
    tokens that belong together in one chunk.  Chunks that an engine forwards are not cut: the place
    is behind the one that reaches it.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        fail_after: int | None = None,
        stall_after: int | None = None,
        is_shut: bool = False,
        on_failed: Callable[[], None],
    ) -> None:
        super().__init__(answer)
        self._passed: Counter[int] = Counter()
        """Tokens of each choice that have left."""
        self._to_fail = fail_after
        self._to_stall = stall_after or None
        self._is_stalled = stall_after == 0
        self._is_shut = is_shut
        self._on_failed = on_failed
        self._held: list[Callable[[], None]] = []
        self._tail: list[int] | None = None
        self._tail_index = 0
        self._news = trio.Event()
        #: Whether the place was reached at which it fails.
        self.has_failed = False

    @property
    def is_held(self) -> bool:
        """Whether it lets nothing through now."""
        return self._is_stalled or self._is_shut

    def shut(self) -> None:
        """Hold everything until `open`."""
        self._is_shut = True

    def open(self) -> None:
        """Let it through again, unless it is stalled."""
        self._is_shut = False
        self._flush()

    def go_on(self) -> None:
        """End a stall, or keep it from coming."""
        self._is_stalled, self._to_stall = False, None
        self._flush()

    async def emptied(self) -> None:
        """Wait until nothing is held any more, if the engine has put all."""
        while self._held and not self.has_failed:
            await self._news.wait()

    # ---- replay.engines.base.Answer

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        """Put the next tokens of choice *index*."""
        if self._to_fail is None and self._to_stall is None and not self.is_held:
            # No fault is in its way, or none any more: the path of nearly every token.
            self._below.tokens(ids, index)
            return
        if self.has_failed:
            return
        if self.is_held:
            self._hold_tokens(ids, index)
            return
        most = min((each for each in (self._to_fail, self._to_stall) if each), default=len(ids))
        head, rest = ids[:most], ids[most:]
        self._below.tokens(head, index)
        self._count(len(head), index)
        if rest:
            self.tokens(rest, index)

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
        self._put(
            partial(
                self._below.finish,
                reason,
                index,
                matched=matched,
                spec_accepted=spec_accepted,
                spec_draft=spec_draft,
            )
        )

    def fail(self, message: str, index: int = 0) -> None:
        """End choice *index* as failed."""
        self._put(partial(self._below.fail, message, index))

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        """Put a whole answer of one choice."""
        if self._to_fail is None and self._to_stall is None and not self.is_held:
            self._below.whole(ids, reason, matched=matched)
            return
        for token in ids:
            self.tokens((token,))
        self.finish(reason, matched=matched)

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        """Pass on a response that is already made."""
        if response.WhichOneof("response") == "chunk":
            self._put(partial(self._forward_chunk, response, packed))
        else:
            # Tokens that come with the end of their choice: the place is before both.
            self._put(partial(self._count_end, response.complete))
            self._put(partial(self._below.forward, response, packed))

    @property
    def is_full(self) -> bool:
        """Whether `room` would wait."""
        return self.is_held or self._below.is_full

    async def room(self) -> None:
        """Wait until the answer is let through and the client has read enough to take more."""
        while self.is_held and not self.has_failed:
            await self._news.wait()
        await self._below.room()

    # ---- inside

    def _forward_chunk(self, response: pb.GenerateResponse, packed: bytes | None) -> None:
        self._below.forward(response, packed)
        self._count(len(response.chunk.token_ids), response.chunk.index)

    def _count_end(self, complete: pb.GenerateComplete) -> None:
        """Count what the end of a choice says beyond what has left before."""
        more = len(complete.output_ids) - self._passed[complete.index]
        self._count(max(0, more), complete.index)

    def _put(self, put: Callable[[], None]) -> None:
        if self.has_failed:
            return
        if self.is_held:
            self._tail = None
            self._held.append(partial(self._put, put))
        else:
            put()

    def _hold_tokens(self, ids: Sequence[int], index: int) -> None:
        if self._tail is None or self._tail_index != index:
            self._tail, self._tail_index = [], index
            self._held.append(partial(self.tokens, self._tail, index))
        self._tail += ids

    def _count(self, tokens: int, index: int) -> None:
        """Take note of tokens that have left; the fault that they lead to hits now."""
        self._passed[index] += tokens
        if self._to_fail is not None:
            self._to_fail = max(0, self._to_fail - tokens)
            if self._to_fail == 0:
                self.has_failed = True
                self._held = []
                self._news.set()
                self._on_failed()
        if self._to_stall is not None:
            self._to_stall = max(0, self._to_stall - tokens) or None
            self._is_stalled = self._to_stall is None

    def _flush(self) -> None:
        if self.is_held:
            return
        held, self._held, self._tail = self._held, [], None
        for put in held:
            put()  # may find the answer held again, and is then held itself
        news, self._news = self._news, trio.Event()
        news.set()
