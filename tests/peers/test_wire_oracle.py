"""Our wire definitions against the public package: what a gateway was built with decides."""

from collections.abc import Callable

import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    ServiceDescriptor,
)
from google.protobuf.descriptor_pool import DescriptorPool
from smg_grpc_proto.generated import common_pb2 as their_common
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as theirs

from replay._proto import common_pb2 as our_common
from replay._proto import tokenspeed_scheduler_pb2 as ours

SERVICE = "TokenSpeedScheduler"

#: A thing of the wire by its full name, and what is to be equal about it.
Facts = dict[str, object]


def facts_of(service: ServiceDescriptor) -> Facts:
    """Collect the methods of *service* and everything that can be reached from them."""
    facts: Facts = {}
    for method in service.methods:
        facts[f"rpc {method.full_name}"] = (
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for message in (method.input_type, method.output_type):
            facts |= facts_of_message(message, facts)
    return facts


def facts_of_message(message: Descriptor, known: Facts) -> Facts:
    """Return *known* with *message* and everything that can be reached from it."""
    name = f"message {message.full_name}"
    if name in known:
        return known
    copy = descriptor_pb2.DescriptorProto()
    message.CopyToProto(copy)
    reserved = sorted((each.start, each.end) for each in copy.reserved_range)
    is_map_entry = message.GetOptions().map_entry
    facts = {**known, name: (reserved, sorted(copy.reserved_name), is_map_entry)}
    written = {field.name: field for field in copy.field}
    for field in message.fields:
        facts[f"field {field.full_name}"] = facts_of_field(field, written[field.name])
        if field.message_type is not None:
            facts = facts_of_message(field.message_type, facts)
        if field.enum_type is not None:
            facts |= facts_of_enum(field.enum_type)
    return facts


def facts_of_field(
    field: FieldDescriptor, written: descriptor_pb2.FieldDescriptorProto
) -> dict[str, object]:
    """Return what decides how a field is written and what its absence means."""
    return {
        "number": field.number,
        "type": descriptor_pb2.FieldDescriptorProto.Type.Name(written.type),
        "type name": written.type_name,
        "label": descriptor_pb2.FieldDescriptorProto.Label.Name(written.label),
        "presence": field.has_presence,
        "oneof": field.containing_oneof and field.containing_oneof.name,
        "optional": written.proto3_optional,
        "packed": field.is_packed,
        "json": field.json_name,
    }


def facts_of_enum(enum: EnumDescriptor) -> Facts:
    """Return the values of *enum*."""
    return {f"enum {enum.full_name}": {value.name: value.number for value in enum.values}}


def differences(our: Facts, their: Facts) -> list[str]:
    """Return one line for each thing that is missing, too much, or not the same."""
    found = [f"we lack {name}" for name in their.keys() - our.keys()]
    found += [f"only we have {name}" for name in our.keys() - their.keys()]
    found += [
        f"{name}: ours {our[name]}, theirs {their[name]}"
        for name in our.keys() & their.keys()
        if our[name] != their[name]
    ]
    return sorted(found)


def their_facts() -> Facts:
    return facts_of(theirs.DESCRIPTOR.services_by_name[SERVICE])


def test_everything_that_the_service_reaches_is_the_same() -> None:
    our = facts_of(ours.DESCRIPTOR.services_by_name[SERVICE])
    assert differences(our, their_facts()) == []
    assert len([name for name in our if name.startswith("rpc ")]) == 11
    assert len(our) > 300  # the walk went somewhere


@pytest.mark.parametrize(("our", "their"), [(ours, theirs), (our_common, their_common)])
def test_every_message_and_enum_that_we_declare_is_theirs(our, their) -> None:
    """Also those that no method reaches."""
    our_facts: Facts = {}
    their_facts: Facts = {}
    for name, message in our.DESCRIPTOR.message_types_by_name.items():
        our_facts |= facts_of_message(message, our_facts)
        their_facts |= facts_of_message(their.DESCRIPTOR.message_types_by_name[name], their_facts)
    for name, enum in our.DESCRIPTOR.enum_types_by_name.items():
        our_facts |= facts_of_enum(enum)
        their_facts |= facts_of_enum(their.DESCRIPTOR.enum_types_by_name[name])
    assert differences(our_facts, their_facts) == []


File = descriptor_pb2.FileDescriptorProto


def message_of(file: File, name: str) -> descriptor_pb2.DescriptorProto:
    return next(message for message in file.message_type if message.name == name)


def field_of(file: File, message: str, name: str) -> descriptor_pb2.FieldDescriptorProto:
    return next(field for field in message_of(file, message).field if field.name == name)


def renumber(file: File) -> None:
    field_of(file, "GenerateRequest", "stream").number = 99


def rename(file: File) -> None:
    field_of(file, "AbortRequest", "reason").name = "cause"


def retype(file: File) -> None:
    field_of(
        file, "SamplingParams", "min_new_tokens"
    ).type = descriptor_pb2.FieldDescriptorProto.TYPE_INT32


def repeat(file: File) -> None:
    field_of(
        file, "HealthCheckResponse", "message"
    ).label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def take_presence_away(file: File) -> None:
    message = message_of(file, "GetLoadsRequest")
    del message.oneof_decl[:]
    field = field_of(file, "GetLoadsRequest", "dp_rank")
    field.ClearField("oneof_index")
    field.ClearField("proto3_optional")


def leave_a_oneof(file: File) -> None:
    field_of(file, "SamplingParams", "structural_tag").ClearField("oneof_index")


def drop_a_field(file: File) -> None:
    message = message_of(file, "SchedulerLoad")
    message.field.remove(field_of(file, "SchedulerLoad", "token_usage"))


def add_a_field(file: File) -> None:
    message = message_of(file, "AbortRequest")
    message.field.add(
        name="extra",
        number=7,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )


def drop_a_method(file: File) -> None:
    del file.service[0].method[-1]


def stream_a_method(file: File) -> None:
    file.service[0].method[1].server_streaming = True


def swap_messages(file: File) -> None:
    file.service[0].method[1].output_type = ".tokenspeed.grpc.scheduler.AbortResponse"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (renumber, "GenerateRequest.stream"),
        (rename, "AbortRequest.reason"),
        (retype, "SamplingParams.min_new_tokens"),
        (repeat, "HealthCheckResponse.message"),
        (take_presence_away, "GetLoadsRequest.dp_rank"),
        (leave_a_oneof, "SamplingParams.structural_tag"),
        (drop_a_field, "SchedulerLoad.token_usage"),
        (add_a_field, "AbortRequest.extra"),
        (drop_a_method, "TokenSpeedScheduler.SubscribeKvEvents"),
        (stream_a_method, "TokenSpeedScheduler.HealthCheck"),
        (swap_messages, "TokenSpeedScheduler.HealthCheck"),
    ],
)
def test_the_comparison_notices_a_change_and_names_it(
    change: Callable[[File], None], named: str
) -> None:
    service = changed_scheduler(change)
    assert any(named in line for line in differences(facts_of(service), their_facts()))


def changed_scheduler(change: Callable[[File], None]) -> ServiceDescriptor:
    """Return our service after *change*, in a pool of its own."""
    pool = DescriptorPool()
    for module in (struct_pb2, timestamp_pb2, our_common):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    file = File.FromString(ours.DESCRIPTOR.serialized_pb)
    change(file)
    pool.Add(file)
    return pool.FindServiceByName(f"{file.package}.{SERVICE}")


def test_a_message_of_theirs_reads_as_ours_and_back() -> None:
    params = theirs.SamplingParams(
        temperature=0.7,
        max_new_tokens=0,
        stop=["a"],
        logit_bias={"5": 1.5},
        json_schema="{}",
        sampling_seed=2**64 - 1,
    )
    request = theirs.GenerateRequest(
        request_id="r",
        tokenized=theirs.TokenizedInput(input_ids=[0, 2**32 - 1], original_text="t"),
        sampling_params=params,
        logprob_start_len=0,
        data_parallel_rank=0,
    )
    read = ours.GenerateRequest.FromString(request.SerializeToString())
    assert read.sampling_params.HasField("max_new_tokens")
    assert not read.sampling_params.HasField("top_k")
    assert theirs.GenerateRequest.FromString(read.SerializeToString()) == request
