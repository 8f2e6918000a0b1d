"""What is remembered of each request of a fleet, in a ring.  PURE.

Nothing of a prompt or of an answer is: only how much there was, and when.
"""

from collections import deque
from collections.abc import Iterator

import attrs

#: Records that are kept, of all workers together: some megabytes.
RECORDS_KEPT = 16_384

#: Characters of an id that are kept: it is the client's, and could be as long as a message.
LONGEST_ID = 1024


@attrs.frozen
class CachedAtArrival:
    """How much of a prompt was cached when it arrived; the worker's own share and the fleet's."""

    here: int
    best: int
    """The most that any worker of this process had cached."""
    best_worker: int
    """The first one that had it: this one, if no other had more."""


@attrs.define(kw_only=True, eq=False)
class RequestRecord:
    """One request, from its arrival on."""

    number: int
    worker: int
    request_id: str
    arrival_unix_ns: int
    stream: bool
    choices: int
    prompt_tokens: int
    cached_at_arrival: CachedAtArrival | None = None
    """None: the worker has no prefix cache, or the prompt is still being read."""
    cached_tokens: int | None = None
    """What the answer said; None: nothing yet, or it said nothing."""
    first_token_ms: float | None = None
    """From the arrival; None: no token yet."""
    last_token_ms: float | None = None
    output_tokens: int = 0
    """Of all choices together."""
    finish_reasons: list[str] = attrs.field(factory=list)
    """In the order in which the choices ended."""
    outcome: str | None = None
    """`OK`, `CANCELLED`, or the name of the status; None while it is in flight."""
    duration_ms: float | None = None
    """From the arrival to the outcome."""


class RequestRecords:
    """The last *capacity* requests, numbered from 1 in the order of their arrival."""

    def __init__(self, capacity: int = RECORDS_KEPT) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=capacity)
        self._count = 0

    def __len__(self) -> int:
        return len(self._records)

    def begin(
        self,
        worker: int,
        request_id: str,
        *,
        arrival_unix_ns: int,
        stream: bool,
        choices: int,
        prompt_tokens: int,
    ) -> RequestRecord:
        """Keep a request that has arrived; what becomes of it is written into the record."""
        self._count += 1
        record = RequestRecord(
            number=self._count,
            worker=worker,
            request_id=request_id[:LONGEST_ID],
            arrival_unix_ns=arrival_unix_ns,
            stream=stream,
            choices=choices,
            prompt_tokens=prompt_tokens,
        )
        self._records.append(record)
        return record

    def find(
        self,
        *,
        worker: int | None = None,
        request_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[RequestRecord]:
        """Yield records with numbers above *after*, the oldest first, at most *limit*."""
        wanted = None if request_id is None else request_id[:LONGEST_ID]
        found = 0
        for record in list(self._records):
            if found == limit:
                return
            if (
                record.number > after
                and worker in (None, record.worker)
                and wanted in (None, record.request_id)
            ):
                found += 1
                yield record

    def forget(self, worker: int | None = None) -> None:
        """Forget the records of *worker*, None: of all.  The numbers go on."""
        kept = [] if worker is None else [each for each in self._records if each.worker != worker]
        self._records = deque(kept, maxlen=self._records.maxlen)
