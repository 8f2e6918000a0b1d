"""Which metadata goes through a proxy: what is allowed, and nothing of the transport.  PURE.

The transport's own fields are those that each of the two connections has to have for itself: even
an allow-list of `*` must not name a compression to the upstream that the client speaks, or send
`user-agent` twice.
"""

from collections.abc import Iterable, Sequence

from replay.taps.metadata import MetadataAllowList

Field = tuple[bytes, bytes]

_TRANSPORT = frozenset(
    (
        *(b"te", b"content-type", b"content-length", b"accept-encoding", b"user-agent", b"host"),
        *(b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-message-type"),
        *(b"grpc-status", b"grpc-message"),
    )
)


class PassedMetadata:
    """Metadata that passes in both directions, by globs over names in lower case."""

    __slots__ = ("_allowed",)

    def __init__(self, globs: Iterable[str]) -> None:
        self._allowed = MetadataAllowList(globs)

    def of(self, metadata: Sequence[Field]) -> list[Field]:
        """Return what of *metadata* goes on, to the upstream or back to the client."""
        return [each for each in self._allowed.of(metadata) if each[0] not in _TRANSPORT]
