"""A target that speaks TokenSpeed's service."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio
from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import GENERATE, METHODS
from replay.player.answer_log import AnswerLog
from replay.player.generate_request import generate_request
from replay.player.outgoing import Outgoing, Speaks
from replay.player.targets import Clock, SendError, TargetError, TargetModel
from replay.rpc.client import Channel, open_channel

#: How long a target may take to say what it is.
DESCRIBE_SECONDS = 10.0


@asynccontextmanager
async def open_grpc_target(
    address: str, *, tls: ssl.SSLContext | None = None, timeout: float | None = None
) -> AsyncIterator["GrpcTarget"]:
    """Open a channel to the worker at *address*; requests may take *timeout* seconds each.

    Raises TargetError for what is no address.
    """
    async with AsyncExitStack() as opened:
        try:
            channel = await opened.enter_async_context(open_channel(address, tls=tls))
        except ValueError as error:
            raise TargetError(f"{address}: {error}") from None
        yield GrpcTarget(address, channel, timeout)


class GrpcTarget:
    """A worker at the other end of a channel."""

    speaks = Speaks.IDS

    def __init__(self, address: str, channel: Channel, timeout: float | None) -> None:
        self._address = address
        self._channel = channel
        self._timeout = timeout

    async def describe(self) -> TargetModel:
        """Ask the worker for its model.  Raises TargetError."""
        try:
            with trio.fail_after(DESCRIBE_SECONDS):
                info = await self._channel.unary(METHODS["GetModelInfo"], pb.GetModelInfoRequest())
        except RpcFailedError as error:
            status = error.status
            raise TargetError(
                f"{self._address}: {status.status_code.name}: {status.status_message}"
            ) from None
        except trio.TooSlowError:
            raise TargetError(f"{self._address}: no answer in {DESCRIBE_SECONDS:g} s") from None
        return TargetModel(
            name=info.served_model_name or info.model_path,
            vocab_size=info.vocab_size,
            context_length=info.max_context_length or None,
        )

    def pack(self, outgoing: Outgoing) -> "_PackedGenerate":
        """Write the request's bytes.  Raises ValueError for a value that does not fit the wire."""
        message = generate_request(outgoing)
        return _PackedGenerate(
            channel=self._channel,
            timeout=self._timeout,
            message=_Serialized(message.SerializeToString()),
            choices=message.sampling_params.n,
            stream=outgoing.stream,
        )


@attrs.frozen
class _Serialized:
    """A message as the channel wants one, whose bytes were written before its moment came."""

    data: bytes = attrs.field(repr=False)

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data


@attrs.frozen(kw_only=True)
class _PackedGenerate:
    """A Generate request that is ready to be sent."""

    channel: Channel
    timeout: float | None
    message: _Serialized
    choices: int
    stream: bool

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        """Send it and note what comes back.  Raises SendError with the name of a status."""
        log.sent(clock.now_ns(), expected=self.choices, is_streamed=self.stream)
        try:
            async with self.channel.stream(GENERATE, self.message, timeout=self.timeout) as answers:
                async for response in answers:
                    _note(log, response, clock.at_ns(answers.received_at))
        except RpcFailedError as error:
            raise SendError(error.status.status_code.name) from None


def _note(log: AnswerLog, response: pb.GenerateResponse, now_ns: int) -> None:
    match response.WhichOneof("response"):
        case "chunk":
            chunk = response.chunk
            log.tokens(chunk.index, chunk.token_ids[:], now_ns)
        case "complete":
            complete = response.complete
            log.whole(complete.index, complete.output_ids[:])
            log.prompt_tokens = complete.prompt_tokens
            log.cached_tokens = complete.cached_tokens
            log.finish(complete.index, complete.finish_reason)
