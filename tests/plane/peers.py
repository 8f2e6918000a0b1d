"""Publishers and readers on the loopback for tests of the event plane."""

from collections.abc import Callable

import attrs
import trio
import zmq

from replay.plane.codec import Message, MessageEncoder
from replay.plane.sockets import receive_frames
from replay.plane.subscriber import Link

Context = zmq.Context[zmq.Socket[bytes]]


class XPub:
    """A publisher that sees its readers come and go, and sends what it is told to."""

    def __init__(self, context: Context, *, host: str = "127.0.0.1", publisher_id: int = 7) -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 5000
        self.socket.sndhwm = 10_000  # what a test sends in one go
        self.socket.ipv6 = ":" in host
        port = self.socket.bind_to_random_port(
            f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        )
        self.endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self.publisher_id = publisher_id

    async def next_subscription(self) -> bytes:
        """Wait until a reader subscribes or leaves: `\\x01` or `\\x00` and the topic."""
        with trio.fail_after(5):
            return (await receive_frames(self.socket))[0]

    def send(
        self, sequence: int, payload: bytes, *, topic: str = "shadow", published_at_ms: int = 1
    ) -> None:
        """Send one message of the publisher."""
        encoder = MessageEncoder(topic, self.publisher_id)
        frames = encoder.encode(sequence, published_at_ms, payload)
        self.socket.send_multipart(frames, zmq.DONTWAIT)

    def __enter__(self) -> "XPub":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@attrs.define
class Collector:
    """A reader that keeps everything, and can be waited for."""

    links: list[Link] = attrs.field(factory=list)
    messages: list[Message] = attrs.field(factory=list)
    reasons: list[str] = attrs.field(factory=list)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def opened(self, link: Link) -> None:
        """Keep the link."""
        self.links.append(link)
        self._notify()

    async def receive(self, link: Link, messages: list[Message]) -> None:
        """Keep the messages."""
        await trio.lowlevel.checkpoint()
        self.messages += messages
        self._notify()

    def malformed(self, link: Link, reason: str) -> None:
        """Keep the reason."""
        self.reasons.append(reason)
        self._notify()

    @property
    def sequences(self) -> list[int]:
        """The transport sequences, as they came."""
        return [message.envelope.sequence for message in self.messages]

    async def until(self, is_so: Callable[["Collector"], bool]) -> None:
        """Wait until *is_so*, which is looked at whenever something has come."""
        with trio.fail_after(10):
            while not is_so(self):
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def eventually(is_so: Callable[[], bool], *, seconds: float = 5) -> None:
    """Wait, at most *seconds*, for what happens in another thread or process and tells nobody."""
    for _ in range(round(seconds * 100)):
        if is_so():
            return
        await trio.sleep(0.01)
    raise TimeoutError("it did not happen")
