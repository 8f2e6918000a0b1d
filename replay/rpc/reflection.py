"""Server reflection (`grpc.reflection.v1` and `v1alpha`), so that grpcurl can list and call."""

from collections.abc import AsyncIterator, Iterable
from types import ModuleType
from typing import Any

import purerpc
from google.protobuf.descriptor import FileDescriptor
from purerpc.grpclib.status import StatusCode

from replay._proto import reflection_v1_pb2, reflection_v1alpha_pb2
from replay._proto.pool import POOL
from replay.rpc.calls import Call

_VERSIONS: tuple[tuple[str, ModuleType], ...] = (
    ("grpc.reflection.v1.ServerReflection", reflection_v1_pb2),
    ("grpc.reflection.v1alpha.ServerReflection", reflection_v1alpha_pb2),
)


def reflection_services(names: Iterable[str]) -> list[purerpc.Service]:
    """Return the reflection services of a server that has the services *names*."""
    known = sorted({*names, *(name for name, _ in _VERSIONS)})
    return [_service(name, pb, known) for name, pb in _VERSIONS]


def _service(name: str, pb: Any, known: list[str]) -> purerpc.Service:
    async def info(messages: AsyncIterator[Any], request: Call) -> AsyncIterator[Any]:
        request.standing = True  # a client may keep it open for long
        async for message in messages:
            yield _answer(message, pb, known)

    service = purerpc.Service(name)
    signature = purerpc.RPCSignature(
        purerpc.Cardinality.STREAM_STREAM,
        pb.ServerReflectionRequest,
        pb.ServerReflectionResponse,
    )
    service.add_method("ServerReflectionInfo", info, signature)
    return service


def _answer(message: Any, pb: Any, known: list[str]) -> Any:
    response = pb.ServerReflectionResponse(valid_host=message.host, original_request=message)
    kind = message.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for name in known:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _add_files(response, POOL.FindFileByName(message.file_by_filename))
        elif kind == "file_containing_symbol":
            _add_files(response, _file_of(message.file_containing_symbol))
        elif kind in ("file_containing_extension", "all_extension_numbers_of_type"):
            _fail(response, StatusCode.NOT_FOUND, "there are no extensions")
        else:
            _fail(response, StatusCode.INVALID_ARGUMENT, "the request asks for nothing")
    except KeyError:
        _fail(response, StatusCode.NOT_FOUND, "no such file or symbol")
    return response


def _file_of(symbol: str) -> FileDescriptor:
    """Find the file of a symbol.  Raises KeyError."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # the pool finds methods by another name of its own
        return POOL.FindMethodByName(symbol).containing_service.file


def _add_files(response: Any, file: FileDescriptor) -> None:
    """Add *file* and all that it imports: clients need not ask again."""
    seen: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in seen:
            seen[each.name] = each
            waiting += each.dependencies
    response.file_descriptor_response.file_descriptor_proto.extend(
        each.serialized_pb for each in seen.values()
    )


def _fail(response: Any, code: StatusCode, text: str) -> None:
    response.error_response.error_code = code.value
    response.error_response.error_message = text
