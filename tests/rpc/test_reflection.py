"""Reflection: a client that knows nothing learns each service and calls each of its methods."""

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from replay._proto import reflection_v1_pb2, reflection_v1alpha_pb2
from replay.engines.methods import METHODS, SERVICE_NAME
from replay.rpc.health import NAME as HEALTH_NAME
from tests.rpc.serving import with_aio
from tests.worker.running import config_of, until
from tests.worker.running import running as running_worker

VERSIONS = {
    "grpc.reflection.v1.ServerReflection": reflection_v1_pb2,
    "grpc.reflection.v1alpha.ServerReflection": reflection_v1alpha_pb2,
}
SERVICES = {SERVICE_NAME, HEALTH_NAME, *VERSIONS}


class Reflection:
    """One open stream of questions, in one of the two versions."""

    def __init__(self, channel: grpc.aio.Channel, version: str) -> None:
        self.pb = VERSIONS[version]
        self.call = channel.stream_stream(
            f"/{version}/ServerReflectionInfo",
            request_serializer=self.pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=self.pb.ServerReflectionResponse.FromString,
        )()

    async def ask(self, **question):
        request = self.pb.ServerReflectionRequest(host="test", **question)
        await self.call.write(request)
        answer = await self.call.read()
        assert answer.valid_host == "test"
        assert answer.original_request == request
        return answer

    async def services(self):
        answer = await self.ask(list_services="*")
        return {each.name for each in answer.list_services_response.service}

    async def pool_of(self, symbol: str) -> descriptor_pool.DescriptorPool:
        """Build a pool of its own from what the server says of *symbol*."""
        answer = await self.ask(file_containing_symbol=symbol)
        found = {}
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            found[file.name] = file
        pool = descriptor_pool.DescriptorPool()

        def add(name: str) -> None:
            file = found.pop(name, None)
            if file is not None:
                for dependency in file.dependency:
                    add(dependency)
                pool.Add(file)

        while found:
            add(next(iter(found)))
        return pool

    async def error(self, **question):
        return (await self.ask(**question)).error_response.error_code


async def with_reflection(address, version, use):
    async def client(channel):
        reflection = Reflection(channel, version)
        result = await use(reflection, channel)
        await reflection.call.done_writing()
        assert await reflection.call.read() is grpc.aio.EOF
        assert await reflection.call.code() is grpc.StatusCode.OK
        return result

    return await with_aio(address, client)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_service_is_listed_and_every_method_can_be_called(version):
    """With classes made from nothing but the server's own words."""

    async def use(reflection, channel):
        called = {}
        for service in await reflection.services():
            pool = await reflection.pool_of(service)
            for method in pool.FindServiceByName(service).methods:
                path = f"/{service}/{method.name}"
                called[path] = await call(channel, path, method)
        return await reflection.services(), called

    async def call(channel, path, method):
        kind = f"{'stream' if method.client_streaming else 'unary'}_" + (
            "stream" if method.server_streaming else "unary"
        )
        request = message_factory.GetMessageClass(method.input_type)()
        answer = message_factory.GetMessageClass(method.output_type)
        made = getattr(channel, kind)(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        argument = iter([request]) if method.client_streaming else request
        made = made(argument, timeout=10)
        try:
            if not method.server_streaming:
                await made
            elif await made.read() is not grpc.aio.EOF:
                return grpc.StatusCode.OK  # a watch would never end
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            made.cancel()
        return await made.code()

    async with running_worker(config_of()) as worker:
        listed, called = await with_reflection(worker.runtime.addresses[0], version, use)
        server = worker.runtime.workers[0].server
        assert listed == SERVICES
        assert set(server.methods) <= called.keys()
        for path in called.keys() - server.methods.keys():  # what this engine does not support
            assert called[path] is grpc.StatusCode.UNIMPLEMENTED
        await until(lambda: not server.calls)
    scheduler = {path.rpartition("/")[2] for path in called if SERVICE_NAME in path}
    assert scheduler == METHODS.keys()
    assert grpc.StatusCode.UNKNOWN not in called.values()
    assert grpc.StatusCode.INTERNAL not in called.values()
    assert called[f"/{SERVICE_NAME}/HealthCheck"] is grpc.StatusCode.OK


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_is_found_by_its_name_with_all_that_it_imports(version):
    async def use(reflection, channel):
        answer = await reflection.ask(file_containing_symbol=SERVICE_NAME)
        first = answer.file_descriptor_response.file_descriptor_proto[0]
        name = descriptor_pb2.FileDescriptorProto.FromString(first).name
        by_name = await reflection.ask(file_by_filename=name)
        assert by_name.file_descriptor_response == answer.file_descriptor_response
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in by_name.file_descriptor_response.file_descriptor_proto
        ]
        return {file.name for file in files}, {each for file in files for each in file.dependency}

    async with running_worker(config_of()) as worker:
        names, imported = await with_reflection(worker.runtime.addresses[0], version, use)
    assert imported
    assert imported <= names


@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_and_methods_are_symbols_too(version):
    async def use(reflection, channel):
        pool = await reflection.pool_of(f"{SERVICE_NAME}.Generate")
        method = pool.FindServiceByName(SERVICE_NAME).methods_by_name["Generate"]
        other = await reflection.pool_of(method.input_type.full_name)
        return other.FindMessageTypeByName(method.input_type.full_name).fields_by_name.keys()

    async with running_worker(config_of()) as worker:
        fields = await with_reflection(worker.runtime.addresses[0], version, use)
    assert {"request_id", "sampling_params"} <= set(fields)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_known_is_an_error_in_the_answer_and_the_stream_goes_on(version):
    async def use(reflection, channel):
        kind = {"containing_type": "a.B", "extension_number": 1}
        return [
            await reflection.error(file_by_filename="no_such.proto"),
            await reflection.error(file_containing_symbol="no.such.Symbol"),
            await reflection.error(file_containing_symbol=""),
            await reflection.error(file_containing_symbol=f"{SERVICE_NAME}.NoSuchMethod"),
            await reflection.error(file_containing_extension=kind),
            await reflection.error(all_extension_numbers_of_type="a.B"),
            await reflection.error(),
        ], await reflection.services()

    async with running_worker(config_of()) as worker:
        codes, services = await with_reflection(worker.runtime.addresses[0], version, use)
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    assert [names[code] for code in codes] == ["NOT_FOUND"] * 6 + ["INVALID_ARGUMENT"]
    assert services == SERVICES
