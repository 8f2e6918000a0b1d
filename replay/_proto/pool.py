"""The descriptor pool of this package, apart from the process-wide default."""

from google.protobuf import descriptor_pool, struct_pb2, timestamp_pb2

POOL = descriptor_pool.DescriptorPool()
for _file in (struct_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
