"""One publisher as a consumer follows it: its ledger, its order, and what to ask for next.

PURE; times are seconds of any steady clock.
"""

from collections import deque

from replay.consumer.ledger import PublisherLedger
from replay.plane.codec import Message
from replay.plane.gap_protocol import Gap
from replay.plane.ordering import Orderer

#: What may wait behind a gap while it is being filled.
MOST_HELD = 8192
MOST_HELD_BYTES = 64 << 20


class FollowedPublisher:
    """Takes the messages of one publisher and returns them without duplicates.

    As long as nobody can fill gaps they come out as they came in; from then on in order.
    """

    def __init__(self, ledger: PublisherLedger) -> None:
        self.ledger = ledger
        self._orderer: Orderer[Message] | None = None
        self._old_gaps: deque[Gap] = deque()
        """Gaps whose followers have been handed on already."""
        self.asked: Gap | None = None
        """The gap that is being filled."""
        self._youngest_ms = -1
        """When the youngest message was published, on its publisher's clock."""

    def is_anew(self, message: Message) -> bool:
        """Say whether a publisher without status records has begun to count anew under its id.

        Dynamo's draw a new id at each start, but others may keep theirs.  A number comes again then
        with a message that is younger than all before it, which no duplicate is.
        """
        envelope = message.envelope
        return (
            self.ledger.latest is None
            and envelope.published_at_ms > self._youngest_ms
            and envelope.sequence in self.ledger.transport
        )

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a message; return those that can be handed on now."""
        self._youngest_ms = max(self._youngest_ms, message.envelope.published_at_ms)
        if not self.ledger.receive(message.envelope.sequence, now):
            return []
        if self._orderer is None:
            return [message]
        return self._orderer.push(message.envelope.sequence, message, len(message.frames[3]))

    def recover(self, message: Message, now: float) -> list[Message]:
        """Take a message that was asked for, like `receive`."""
        known = self.ledger.transport.count
        ready = self.receive(message, now)
        self.ledger.recovered += self.ledger.transport.count - known
        return ready

    def start_filling(self) -> None:
        """Learn that gaps can be filled, those that are there already included."""
        if self._orderer is not None or self.ledger.joined_at is None:
            return
        seen = self.ledger.transport
        joined_at = self.ledger.joined_at
        expected = joined_at if seen.end is None else seen.end
        if seen.first is not None and joined_at < seen.first:
            self._old_gaps.append(Gap(self.ledger.publisher_id, joined_at, seen.first - 1))
        self._old_gaps += (Gap(self.ledger.publisher_id, *hole) for hole in seen.holes())
        self._orderer = Orderer(expected, most_held=MOST_HELD, most_held_bytes=MOST_HELD_BYTES)

    def next_gap(self, tail_loss: int | None) -> Gap | None:
        """Return the gap to ask for now, if there is one and none is being filled."""
        if self._orderer is None or self.asked is not None:
            return None
        self.asked = self._find_gap(self._orderer, tail_loss)
        return self.asked

    def _find_gap(self, orderer: Orderer[Message], tail_loss: int | None) -> Gap | None:
        publisher_id = self.ledger.publisher_id
        if self._old_gaps:
            return self._old_gaps.popleft()
        if orderer.gap is not None:
            return Gap(publisher_id, *orderer.gap)
        seen = self.ledger.transport.end
        end = self.ledger.joined_at if seen is None else seen
        # What was given up once is not asked for again.
        if tail_loss and end is not None and orderer.expected < end + tail_loss:
            return Gap(publisher_id, max(end, orderer.expected), end + tail_loss - 1)
        return None

    def finish(self) -> list[Message]:
        """Return what still waits behind gaps: nobody will fill them any more."""
        return [] if self._orderer is None else self._orderer.give_up_all()

    def settle(self, gap: Gap) -> list[Message]:
        """Learn that what is missing of *gap* cannot be had; return what waited behind it."""
        self.ledger.unrecovered += self.ledger.transport.missing_between(gap.first, gap.last)
        if gap == self.asked:
            self.asked = None
        return [] if self._orderer is None else self._orderer.give_up(gap.last)
