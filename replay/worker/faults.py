"""The faults that are set for one worker, and what befalls a request that arrives.  PURE.

Times are arguments, in seconds of any one clock.  A fault that is aimed at requests hits those that
arrive while it is set: so many of them, or for so long, or all until it is taken back.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from replay.config.bounds import above, at_least, whole
from replay.config.problems import Fault, Path, quoted
from replay.engines.script_file import ERROR_CODES

#: More than that is a slip: eleven days in milliseconds, thirty years in seconds.
MOST = 1e9

#: A status travels in a header, and those are short.
LONGEST_MESSAGE = 500


@attrs.frozen(kw_only=True)
class Failing:
    """Requests end with a status."""

    code: str
    """Name of a gRPC code that is an error."""
    message: str = "asked for by the operator"
    after_tokens: int = 0
    """Tokens, of all choices together, that leave before; 0: the engine is not even asked."""
    requests: int | None = None
    """How many requests it hits; None: no limit."""
    seconds: float | None = None
    """For how long it hits those that arrive; None: until it is taken back."""

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the values."""
        if self.code not in ERROR_CODES:
            text = f"must be the name of a gRPC code that is an error, is {quoted(self.code)}"
            yield Fault(("code",), text)
        if len(self.message) > LONGEST_MESSAGE:
            yield Fault(("message",), f"must have at most {LONGEST_MESSAGE} characters")
        yield from _aim_faults(self)


@attrs.frozen(kw_only=True)
class Stalling:
    """Requests stop in the middle, and go on when the fault is taken back."""

    after_tokens: int = 0
    """Tokens, of all choices together, that leave before."""
    requests: int | None = None
    """How many requests it hits; None: no limit."""
    seconds: float | None = None
    """For how long it hits those that arrive; None: until it is taken back."""

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the values."""
        yield from _aim_faults(self)


@attrs.frozen(kw_only=True)
class Admission:
    """Requests reach the engine late, or no faster than at a rate."""

    delay_ms: float = 0.0
    """Milliseconds from a request's arrival until the engine gets it."""
    per_second: float | None = None
    """Requests that the engine gets in a second, evenly spaced; None: as they come."""

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the values."""
        yield from at_least(("delay_ms",), self.delay_ms, 0)
        yield from above(("per_second",), self.per_second, 0)
        yield from _limited(("delay_ms",), self.delay_ms)
        yield from _limited(("per_second",), self.per_second)


@attrs.frozen(kw_only=True)
class KvEventLoss:
    """Batches of KV events that are lost on their way, or come late."""

    drop_batches: int = 0
    """How many of the next ones nobody gets as they happen; who resumes gets them."""
    delay_ms: float = 0.0
    """Milliseconds by which all come later."""

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the values."""
        yield from whole(("drop_batches",), self.drop_batches, 0)
        yield from at_least(("delay_ms",), self.delay_ms, 0)
        yield from _limited(("delay_ms",), self.delay_ms)


def _aim_faults(fault: Failing | Stalling) -> Iterator[Fault]:
    yield from whole(("after_tokens",), fault.after_tokens, 0)
    yield from whole(("requests",), fault.requests, 1)
    yield from above(("seconds",), fault.seconds, 0)
    yield from _limited(("seconds",), fault.seconds)


def _limited(path: Path, value: float | None) -> Iterator[Fault]:
    if value is not None and value > MOST:
        yield Fault(path, f"must be at most {MOST:g}, is {value:g}")


Aimed = TypeVar("Aimed", bound=Failing | Stalling)


class Aim(Generic[Aimed]):
    """A fault that is set, and how far it still reaches."""

    def __init__(self, fault: Aimed, now: float) -> None:
        self.fault: Aimed = fault
        self._left = fault.requests
        self._until = None if fault.seconds is None else now + fault.seconds

    def requests_left(self, now: float) -> int | None:
        """Return how many requests it would still hit; None: any number."""
        return 0 if self._until is not None and now >= self._until else self._left

    def hit(self, now: float) -> Aimed | None:
        """Return the fault if it hits a request that arrives *now*."""
        left = self.requests_left(now)
        if left == 0:
            return None
        if left is not None:
            self._left = left - 1
        return self.fault


class FaultRules:
    """What is set for one worker."""

    def __init__(self) -> None:
        self.failing: Aim[Failing] | None = None
        self.stalling: Aim[Stalling] | None = None
        self._admission: Admission | None = None
        self._last_admitted_at: float | None = None
        #: Whether nothing is admitted and no token leaves.
        self.is_paused = False

    @property
    def admission(self) -> Admission | None:
        """How requests reach the engine; None: at once."""
        return self._admission

    @admission.setter
    def admission(self, admission: Admission | None) -> None:
        self._admission = admission
        self._last_admitted_at = None

    def hits(self, now: float) -> tuple[Failing | None, Stalling | None]:
        """Return what hits a request that arrives *now*."""
        return (
            None if self.failing is None else self.failing.hit(now),
            None if self.stalling is None else self.stalling.hit(now),
        )

    def admit_at(self, now: float, arrival: float | None = None) -> float:
        """Return when a request that came at *arrival* (None: *now*) reaches the engine.

        A place in the row is taken by that, also if the request leaves before.
        """
        admission = self._admission
        if admission is None:
            return now
        at = max(now, (now if arrival is None else arrival) + admission.delay_ms / 1000)
        if admission.per_second is not None:
            if self._last_admitted_at is not None:
                at = max(at, self._last_admitted_at + 1 / admission.per_second)
            self._last_admitted_at = at
        return at
