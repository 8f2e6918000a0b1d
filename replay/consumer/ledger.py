"""What is known of one publisher: what came, what is missing, and what its runtime says of it.

PURE; times are seconds of any steady clock.

Without status records the numbers that came are all there is: a hole is a loss, and what was lost
after the last message cannot be seen (rule 66).  A status record says how many messages were
published, so it shows the tail too.  It travels on a connection of its own, so it may overtake
messages.  Two rules keep the count exact all the same:

- A reader has joined a publisher with its first message.  If none comes, it has joined with the
  second status record after the connection was made: the subscription had a heartbeat's time.
- A message that a status record speaks of is lost when nothing has come from the publisher for
  `SETTLE_SECONDS` after it.  If it comes after all, it is taken off the loss again.
"""

from collections import deque

from replay.consumer.gaps import SequenceRanges
from replay.consumer.status import Dropped, TapStatus

#: How long a message may be on its way after the status record that speaks of it.
SETTLE_SECONDS = 0.5


class PublisherLedger:
    """The account of one publisher id: one tap in one runtime (rule 65)."""

    def __init__(self, publisher_id: int, *, from_start: bool = False) -> None:
        """Begin an account; *from_start* takes everything since sequence 0 as expected."""
        self.publisher_id = publisher_id
        self.transport = SequenceRanges()
        """Transport sequences, and with the next one the tap's own numbers."""
        self.tap = SequenceRanges()
        self.tap_name: str | None = None
        self.duplicates = 0
        self.recovered = 0
        self.unrecovered = 0
        """Missing messages that were asked for and could not be had."""
        self.is_final = False
        """Whether its runtime has said that there will be no more."""
        self.heard_at: float | None = None
        """When the last message came."""
        self.latest: TapStatus | None = None
        self._from_start = from_start
        self._joined_by_status: int | None = None
        self._status_at_join: TapStatus | None = None
        self._first_record: tuple[int, int] | None = None
        """Sequence and `seq` of the record with the lowest sequence."""
        self._was_subscribed = False
        self._statuses: deque[tuple[float, int]] = deque()
        """Arrival and next sequence of the last status that has settled, and all after it."""

    @property
    def joined_at(self) -> int | None:
        """The sequence from which on a missing message is a lost one; None before it has joined."""
        first = self.transport.first
        if first is None:
            return self._joined_by_status
        if self._from_start:
            return 0
        by_status = self._joined_by_status
        return first if by_status is None else min(first, by_status)

    def receive(self, sequence: int, now: float) -> bool:
        """Note a message.  Returns False for one that came before."""
        self.heard_at = now
        if self.transport.add(sequence):
            return True
        self.duplicates += 1
        return False

    def count(self, sequence: int, seq: int) -> None:
        """Note which number the tap gave the record in message *sequence*."""
        self.tap.add(seq)
        if self._first_record is None or sequence < self._first_record[0]:
            self._first_record = (sequence, seq)

    def observe(
        self, status: TapStatus, now: float, *, is_final: bool, is_subscribed: bool
    ) -> None:
        """Note what the runtime says.

        *is_subscribed*: the connection to the publisher was made before this record was received.
        """
        self.latest = status
        self.tap_name = status.tap
        self.is_final = self.is_final or is_final
        if self.joined_at is None and is_subscribed and self._was_subscribed:
            self._joined_by_status = 0 if self._from_start else status.next_sequence
        self._was_subscribed = is_subscribed
        if self.joined_at is not None:
            known = self._status_at_join
            # The first one that knows of all that was dropped before the message that we joined
            # with: a status may be older than it.
            if known is None or known.dropped.total < self._dropped_before(known):
                self._status_at_join = status
        self._statuses.append((now, status.next_sequence))
        while len(self._statuses) > 1 and self._statuses[1][0] <= now - SETTLE_SECONDS:
            self._statuses.popleft()

    @property
    def transport_loss(self) -> int | None:
        """Messages lost between joining and the last one that came; None without a status."""
        if self.latest is None or self.joined_at is None:
            return None
        end = self.transport.end
        return 0 if end is None else end - self.joined_at - self.transport.count

    def tail_loss(self, now: float, *, is_empty: bool, is_over: bool) -> int | None:
        """Return the messages lost after the last one that came; None if that is not known (yet).

        *is_empty*: all that had arrived is noted.  *is_over*: nothing can arrive any more.
        """
        if self.joined_at is None or not self._statuses:
            return None
        end = self.transport.end
        seen = self.joined_at if end is None else end
        if is_over:
            return max(0, self._statuses[-1][1] - seen)
        # After the last status there is no reason to be content with an older one.
        candidates = list(self._statuses)[-1:] if self.is_final else self._statuses
        settled = [sent for at, sent in candidates if at <= now - SETTLE_SECONDS]
        if not settled:
            return None
        lost = settled[-1] - seen
        if lost <= 0:
            return 0
        is_quiet = self.heard_at is None or self.heard_at <= now - SETTLE_SECONDS
        return lost if is_quiet and is_empty else None

    @property
    def dropped(self) -> Dropped | None:
        """What the tap itself could not queue since we joined; None without a status.

        The sum is exact; the reasons of what was dropped before the first status are guessed.
        """
        if self.latest is None or self.joined_at is None:
            return None
        if self.joined_at == 0:
            # Nothing came before us, so what was dropped was dropped for us too.
            return self.latest.dropped
        # The last status may have come before all that it speaks of.
        known = self._status_at_join or self.latest
        since_joining = max(0, known.dropped.total - self._dropped_before(known))
        return self.latest.dropped.since(known.dropped.without(since_joining))

    def _dropped_before(self, status: TapStatus) -> int:
        """Return how many records were dropped before the message that we joined with.

        Each record costs a number of the tap, and each that is not dropped a sequence too, so the
        two numbers of that message say it.  Without them it is what *status* says.
        """
        if self._first_record is None or self._first_record[0] != self.joined_at:
            return status.dropped.total
        sequence, seq = self._first_record
        return seq - sequence - status.unnumbered
