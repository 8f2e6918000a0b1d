"""What of a call's metadata goes through a proxy."""

from replay.engines.passed_metadata import PassedMetadata

SENT = [
    (b"x-tenant", b"a"),
    (b"x-tenant", b"b"),
    (b"authorization", b"secret"),
    (b"user-agent", b"client/1"),
    (b"grpc-accept-encoding", b"gzip"),
    (b"grpc-trace-bin", b"AAA"),
    (b"content-type", b"application/grpc"),
]


def test_nothing_passes_unless_it_is_allowed():
    assert PassedMetadata(()).of(SENT) == []


def test_allowed_names_pass_in_order_with_all_their_values():
    assert PassedMetadata(("X-*",)).of(SENT) == [(b"x-tenant", b"a"), (b"x-tenant", b"b")]


def test_what_belongs_to_the_transport_never_passes():
    names = [name for name, _ in PassedMetadata(("*",)).of(SENT)]
    assert names == [b"x-tenant", b"x-tenant", b"authorization", b"grpc-trace-bin"]
