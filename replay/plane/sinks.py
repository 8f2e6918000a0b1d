"""Where the publisher of a tap puts its records: on a PUB socket, into record files, or both.

A sink numbers its messages: one number for each attempt to publish, spent even if the attempt
fails, so that a reader sees the hole.
"""

import time

import zmq

from replay.errors import JournalWriteError, ReplayError
from replay.plane.codec import MessageEncoder
from replay.plane.record_writer import RecordFileWriter
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sockets import close_after_linger, send_frames


class SinkError(ReplayError):
    """A record could not be published.  The text says why and holds nothing of its content."""


class PlaneSink:
    """A publisher of the event plane.  For the one task that publishes with it."""

    def __init__(
        self,
        topic: str,
        publisher_id: int,
        *,
        socket: zmq.Socket[bytes] | None = None,
        replay_buffer: ReplayBuffer | None = None,
        record_file: RecordFileWriter | None = None,
    ) -> None:
        """Publish on a PUB *socket*, which is then the sink's, and into *record_file*.

        *replay_buffer* gets what went out on the socket.
        """
        self.topic = topic
        self.publisher_id = publisher_id
        self.next_sequence = 0
        """The transport sequence that the next attempt gets."""
        self._encoder = MessageEncoder(topic, publisher_id)
        self._socket = socket
        self._replay_buffer = replay_buffer
        self._record_file = record_file

    async def publish(self, payload: bytes) -> None:
        """Publish one record.  Waits for nothing but the record file.

        Without a subscriber, or for one whose queue is full, ZeroMQ drops the message without a
        word.  Raises `SinkError`; a message that is too long costs no sequence number.
        """
        sequence = self.next_sequence
        try:
            frames = self._encoder.encode(sequence, time.time_ns() // 1_000_000, payload)
        except ValueError as error:
            raise SinkError(str(error)) from None
        self.next_sequence += 1
        if self._socket is not None:
            try:
                send_frames(self._socket, frames)
            except zmq.ZMQError as error:
                raise SinkError(f"cannot send: {zmq.strerror(error.errno or 0)}") from error
            if self._replay_buffer is not None:
                self._replay_buffer.append(sequence, frames)
        if self._record_file is not None:
            try:
                await self._record_file.append([frames])
            except (JournalWriteError, ValueError) as error:
                raise SinkError(f"record file: {error}") from error

    def close(self, *, linger_seconds: float) -> None:
        """Close the socket; what it has queued may leave for that long, at least 0.1 s.

        Returns at once.  The record file is closed by its owner, who can wait for it.
        """
        if self._socket is not None:
            close_after_linger(self._socket, linger_seconds)
