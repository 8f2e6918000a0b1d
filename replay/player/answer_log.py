"""PURE.  Puts together what comes back for one request, from either kind of target.

Time is an argument: nanoseconds from the start of the run.
"""

from array import array

import attrs

from replay.player.observation import Choice, Observation, Outcome, TokenIds


@attrs.define
class _Open:
    """A choice as far as it has come."""

    ids: TokenIds = attrs.field(factory=lambda: array("I"))
    text: list[str] = attrs.field(factory=list)
    events: int = 0
    """Pieces of text that came."""
    tokens: int | None = None
    """What the target says of their number."""
    finish: str | None = None


class AnswerLog:
    """What has come back for one request."""

    def __init__(self, request_id: str, position: int) -> None:
        self._request_id = request_id
        self._position = position
        self._choices: dict[int, _Open] = {}
        self._events_ns: array[int] = array("Q")
        self._expected = 1
        self._is_streamed = True
        self.sent_ns: int | None = None
        self.scheduled_ns: int | None = None
        self.target: str | None = None
        self.filled: tuple[str, ...] = ()
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None

    def sent(self, now_ns: int, *, expected: int, is_streamed: bool) -> None:
        """Note that the request leaves now, for *expected* choices."""
        self.sent_ns = now_ns
        self._expected = max(1, expected)
        self._is_streamed = is_streamed

    def tokens(self, index: int, ids: "array[int] | list[int]", now_ns: int) -> None:
        """Note the next tokens of a choice."""
        if ids:
            self._choice(index).ids.extend(ids)
            self._event(now_ns)

    def text(self, index: int, text: str, now_ns: int) -> None:
        """Note the next text of a choice."""
        if text:
            choice = self._choice(index)
            choice.text.append(text)
            choice.events += 1
            self._event(now_ns)

    def whole(self, index: int, ids: "array[int] | list[int]") -> None:
        """Note all tokens of a choice, where the target sends them once more at the end."""
        if ids:
            choice = self._choice(index)
            choice.ids = array("I", ids)

    def finish(self, index: int, reason: str) -> None:
        """Note that a choice has ended."""
        self._choice(index).finish = reason

    def counted(self, tokens: int) -> None:
        """Note how many tokens the target says the answer has: kept for answers of text."""
        if len(self._choices) == 1:
            next(iter(self._choices.values())).tokens = tokens

    def ended(self, now_ns: int) -> Observation:
        """Return what came, of an answer whose stream has ended by itself."""
        reasons = [choice.finish for choice in self._choices.values()]
        if any((reason or "").startswith("error") for reason in reasons):
            outcome = Outcome.ERROR
        elif any(reason in ("abort", "cancelled") for reason in reasons):
            outcome = Outcome.CANCELLED
        elif sum(reason is not None for reason in reasons) < self._expected:
            outcome = Outcome.INCOMPLETE
        else:
            outcome = Outcome.COMPLETE
        return self._observation(now_ns, outcome)

    def cancelled(self, now_ns: int, *, reason: str | None = None) -> Observation:
        """Return what came until the player left."""
        return self._observation(now_ns, Outcome.CANCELLED, error=reason)

    def failed(self, now_ns: int, label: str) -> Observation:
        """Return what came until the answer failed with *label*."""
        return self._observation(now_ns, Outcome.ERROR, error=label)

    def _choice(self, index: int) -> _Open:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Open()
        return choice

    def _event(self, now_ns: int) -> None:
        self._events_ns.append(max(0, now_ns - (self.sent_ns or 0)))

    def _observation(
        self, now_ns: int, outcome: Outcome, *, error: str | None = None
    ) -> Observation:
        events = self._events_ns if self._is_streamed else array("Q")
        return Observation(
            request_id=self._request_id,
            position=self._position,
            outcome=outcome,
            choices=tuple(_closed(index, self._choices[index]) for index in sorted(self._choices)),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            first_token_offset_ns=events[0] if events else None,
            last_token_offset_ns=events[-1] if events else None,
            end_offset_ns=max(0, now_ns - (self.sent_ns or 0)),
            chunk_offsets_ns=events if self._is_streamed else None,
            scheduled_ns=self.scheduled_ns,
            sent_ns=self.sent_ns,
            error=error,
            target=self.target,
            filled=self.filled,
        )


def _closed(index: int, choice: _Open) -> Choice:
    if choice.text:
        # Without a count, an event is taken for a token, as servers that stream send them.
        tokens = choice.events if choice.tokens is None else choice.tokens
        return Choice(
            index=index,
            finish_reason=choice.finish,
            output_tokens=tokens,
            text="".join(choice.text),
        )
    tokens = len(choice.ids) if choice.tokens is None else choice.tokens
    return Choice(
        index=index, finish_reason=choice.finish, output_tokens=tokens, token_ids=choice.ids
    )
