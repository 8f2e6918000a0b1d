"""A gRPC server: accepts, serves, drains.

The server outlives the cancellation of the scope around it: it ends when `stop` has been called, so
that calls in flight get their status and their records are written.  The order of a stop:

1. nothing more is accepted, new calls get UNAVAILABLE, each client gets a GOAWAY;
2. calls finish within the grace; standing calls (those that only wait for events) do not count;
3. what is left is cancelled (`Ending.SHUTDOWN`) and its status leaves;
4. connections close.
"""

import ssl
from collections.abc import Callable, Iterable, Sequence

import purerpc
import trio

from replay.logger import get_logger
from replay.rpc.calls import Call, Ending, Method, methods_of
from replay.rpc.http2 import Http2Limits
from replay.rpc.listeners import Listening
from replay.rpc.peer import Peer, describe_fault, refuse_connection

log = get_logger(__name__)

#: How long cancelled calls may take to unwind, and their last bytes to leave.
UNWIND_SECONDS = 1.0


class Server:
    """Serves services on listeners that somebody else has bound."""

    def __init__(
        self,
        services: Iterable[purerpc.Service],
        *,
        limits: Http2Limits | None = None,
        message_limit: int | None = None,
        connection_limit: int = 1024,
        answered_while_draining: Iterable[str] = (),
        on_call_ended: Callable[[Call], None] | None = None,
    ) -> None:
        self.methods: dict[str, Method] = methods_of(services)
        self.limits = limits or Http2Limits()
        self.message_limit = message_limit
        self.connection_limit = connection_limit
        self.answered_while_draining = frozenset(answered_while_draining)
        self.is_draining = False
        self._on_call_ended = on_call_ended
        self._peers: set[Peer] = set()
        self._working = 0
        self._calls: set[Call] = set()
        self._idle = trio.Event()
        self._accepting = trio.CancelScope()
        self._lifetime = trio.CancelScope(shield=True)
        self._flusher = _Flusher()
        self._listening: Sequence[Listening] = ()

    # ---- what others may ask

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._peers)

    @property
    def calls(self) -> frozenset[Call]:
        """Calls in flight."""
        return frozenset(self._calls)

    # ---- the host of its connections

    def flush_soon(self, peer: Peer) -> None:
        """Have *peer* flushed after the tasks that are ready have run."""
        self._flusher.add(peer)

    def call_started(self, call: Call) -> None:
        """Take note of a call."""
        self._calls.add(call)

    def call_ended(self, call: Call) -> None:
        """Take note of its end."""
        self._calls.discard(call)
        if self._on_call_ended is not None:
            self._on_call_ended(call)
        if self.is_draining and not self._has_work():
            self._idle.set()

    def _has_work(self) -> bool:
        return any(not call.standing for call in self._calls)

    # ---- life

    async def run(
        self,
        listening: Sequence[Listening],
        *,
        tls: ssl.SSLContext | None = None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until `stop`; only that ends it, not a cancellation from outside.

        One that is there before the first step is obeyed: `Nursery.start` would not return, and so
        nobody would call `stop`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._listening = listening
        with self._lifetime:
            async with trio.open_nursery() as connections:
                connections.start_soon(self._flusher.run)
                listeners = [each for one in listening for each in one.listeners(tls)]
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(
                        self._serve_connection, listeners, handler_nursery=connections
                    )
                await trio.sleep_forever()

    async def _serve_connection(self, stream: trio.abc.Stream) -> None:
        if len(self._peers) >= self.connection_limit:
            log.warning("connection refused", reason="too many", limit=self.connection_limit)
            await refuse_connection(self, stream)
            return  # serve_listeners closes the stream
        peer = Peer(self)
        self._peers.add(peer)
        try:
            await peer.run(stream)
        except Exception as error:  # a fault of ours must not cost the other connections
            log.error("connection failed", **describe_fault(error))
        finally:
            self._peers.discard(peer)

    def refuse_new_calls(self) -> None:
        """Answer new calls with UNAVAILABLE from now on, and tell the clients to go elsewhere."""
        self.is_draining = True
        for peer in self._peers:
            peer.connection.begin_drain()
            peer.flush()

    async def stop(self, *, grace_seconds: float) -> int:
        """Stop in the order of the module; return how many calls had to be cancelled.

        Takes *grace_seconds* plus at most twice UNWIND_SECONDS.  May be cancelled, which makes the
        grace end; what comes after it is bounded and shielded.
        """
        self._accepting.cancel()
        for listening in self._listening:
            listening.close()
        self.refuse_new_calls()
        # Calls that wait for what was just said, a watch on health above all, hear it first.
        await trio.lowlevel.cancel_shielded_checkpoint()
        try:
            if self._has_work():
                with trio.move_on_after(grace_seconds):
                    await self._idle.wait()
        finally:
            cancelled = self._cancel_calls()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNWIND_SECONDS):
                await self._wait_unwound()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNWIND_SECONDS):
                await self._flush_all()
            self._lifetime.cancel()
        return cancelled

    def _cancel_calls(self) -> int:
        cancelled = 0
        for call in list(self._calls):
            cancelled += not call.standing
            call.cancel(Ending.SHUTDOWN)
        return cancelled

    async def _wait_unwound(self) -> None:
        while self._calls:
            if self._idle.is_set():  # otherwise another stop may wait for it too
                self._idle = trio.Event()
            for call in self._calls:
                call.standing = False  # now each counts
            await self._idle.wait()

    async def _flush_all(self) -> None:
        """Wait until what was queued has left; a client that does not read gets a second."""
        async with trio.open_nursery() as flushing:
            for peer in self._peers:
                peer.connection.refuse_new()
                peer.flush()
                flushing.start_soon(peer.wait_sent)


class _Flusher:
    """One task that sends for all connections that are due."""

    def __init__(self) -> None:
        self._due: list[Peer] = []
        self._task: trio.lowlevel.Task | None = None

    def add(self, peer: Peer) -> None:
        self._due.append(peer)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def run(self) -> None:
        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            if not self._due:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)
            due, self._due = self._due, []
            for peer in due:
                peer.is_due = False
                peer.flush()
            del due, peer  # a connection that has ended would be kept until the next is due
