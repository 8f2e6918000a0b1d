"""Reflection as grpcurl and its like use it: list, fetch files, find each method's messages."""

import pytest
import trio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from replay._proto import reflection_v1_pb2, reflection_v1alpha_pb2
from replay.engines.methods import METHODS, SERVICE_NAME
from replay.rpc.client import ClientMethod, open_channel
from replay.rpc.health import NAME as HEALTH_NAME
from tests.engines.requests import generate_request
from tests.worker.running import running

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
VERSIONS = pytest.mark.parametrize(
    ("name", "pb"), [(V1, reflection_v1_pb2), (V1ALPHA, reflection_v1alpha_pb2)]
)
NOT_FOUND, INVALID_ARGUMENT = 5, 3


async def ask(address: str, name: str, pb, *requests: dict):
    """Ask on one stream, each question after the answer to the one before."""
    method = ClientMethod(f"/{name}/ServerReflectionInfo", pb.ServerReflectionResponse.FromString)
    answers = []
    with trio.fail_after(5):
        async with open_channel(address) as channel, channel.stream(method) as stream:
            for request in requests:
                stream.send(pb.ServerReflectionRequest(**request))
                answers.append(await anext(stream))
            stream.end_requests()
            assert [each async for each in stream] == []
    return answers


@VERSIONS
async def test_all_services_are_listed(name, pb):
    async with running() as worker:
        (answer,) = await ask(worker.runtime.addresses[0], name, pb, {"list_services": "*"})
    listed = [each.name for each in answer.list_services_response.service]
    assert listed == sorted([SERVICE_NAME, HEALTH_NAME, V1, V1ALPHA])


@VERSIONS
async def test_from_the_files_each_method_of_each_service_can_be_called(name, pb):
    """A pool that knows nothing but the answers finds every type, and its messages are ours."""
    async with running() as worker:
        address = worker.runtime.addresses[0]
        (listed,) = await ask(address, name, pb, {"list_services": ""})
        services = [each.name for each in listed.list_services_response.service]
        answers = await ask(
            address, name, pb, *({"file_containing_symbol": each} for each in services)
        )
        for service, answer in zip(services, answers, strict=True):
            pool = descriptor_pool.DescriptorPool()
            files = [
                descriptor_pb2.FileDescriptorProto.FromString(each)
                for each in answer.file_descriptor_response.file_descriptor_proto
            ]
            known = set()
            while files:  # a file may only be added behind those that it imports
                ready = [each for each in files if known.issuperset(each.dependency)]
                assert ready, [each.name for each in files]
                for each in ready:
                    pool.Add(each)
                    known.add(each.name)
                    files.remove(each)
            methods = pool.FindServiceByName(service).methods
            assert methods
            for method in methods:
                for described in (method.input_type, method.output_type):
                    message_factory.GetMessageClass(described)()
            if service == SERVICE_NAME:
                assert set(METHODS) <= {method.name for method in methods}
                generate = pool.FindMethodByName(f"{SERVICE_NAME}.Generate")
                message_class = message_factory.GetMessageClass(generate.input_type)
                data = generate_request(max_new_tokens=2).SerializeToString()
                message = message_class.FromString(data)
                assert message.SerializeToString() == data
                assert len(await worker.generate(message)) > 0


@VERSIONS
async def test_files_are_found_by_name_and_by_the_symbols_in_them(name, pb):
    async with running() as worker:
        address = worker.runtime.addresses[0]
        (by_symbol,) = await ask(address, name, pb, {"file_containing_symbol": HEALTH_NAME})
        (data,) = by_symbol.file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        answers = await ask(
            address,
            name,
            pb,
            {"file_by_filename": file.name},
            {"file_containing_symbol": f"{HEALTH_NAME}.Check"},
            {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse.ServingStatus"},
        )
    for answer in answers:
        assert list(answer.file_descriptor_response.file_descriptor_proto) == [data]


@VERSIONS
async def test_what_is_not_there_is_an_answer_and_the_stream_goes_on(name, pb):
    extension = {"containing_type": SERVICE_NAME, "extension_number": 1}
    questions = (
        ({"file_by_filename": "no/such.proto", "host": "a"}, NOT_FOUND),
        ({"file_containing_symbol": "no.such.Symbol"}, NOT_FOUND),
        ({"file_containing_extension": extension}, NOT_FOUND),
        ({"all_extension_numbers_of_type": SERVICE_NAME}, NOT_FOUND),
        ({}, INVALID_ARGUMENT),
    )
    async with running() as worker:
        address = worker.runtime.addresses[0]
        answers = await ask(
            address, name, pb, *(each for each, _ in questions), {"list_services": ""}
        )
    assert [each.error_response.error_code for each in answers[:-1]] == [
        code for _, code in questions
    ]
    assert all(each.error_response.error_message for each in answers[:-1])
    assert answers[0].original_request == pb.ServerReflectionRequest(**questions[0][0])
    assert answers[0].valid_host == "a"
    assert len(answers[-1].list_services_response.service) == 4
