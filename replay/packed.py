"""PURE.  Values kept in the MessagePack form in which they travel.

A packed value cannot change under a queue that holds it, its size in memory is known, and it is
written into any number of records without being packed again.  A field whose content nobody here
reads is never unpacked at all, which also keeps a float32 a float32.
"""

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, overload

import msgpack

Ids: TypeAlias = "array[int]"

#: Token ids are 4 bytes each in memory.  A platform on which they are not is not supported.
TOKEN_BYTES: Final = array("I").itemsize
if TOKEN_BYTES != 4:
    raise ImportError("replay needs a platform on which a C unsigned int has 4 bytes")

#: Packs a small Python value: integers in their shortest form, floats as float64.  Its buffer stays
#: as large as the largest value that it has seen, so what can be large goes to `msgpack.packb`.
pack: Final[Callable[[Any], bytes]] = msgpack.Packer(autoreset=True).pack
#: The same, with floats as float32.
pack_float32: Final[Callable[[Any], bytes]] = msgpack.Packer(
    autoreset=True, use_single_float=True
).pack

NIL: Final = b"\xc0"


def unpack(data: bytes) -> Any:
    """Unpack one value.

    Raises what msgpack raises: a `ValueError` or one of its `UnpackException`s.
    """
    return msgpack.unpackb(data, strict_map_key=False)


def map_header(count: int) -> bytes:
    """Return the head of a map of *count* pairs."""
    if count < 16:
        return bytes((0x80 | count,))
    return (
        b"\xde" + count.to_bytes(2, "big") if count < 65536 else b"\xdf" + count.to_bytes(4, "big")
    )


def array_header(count: int) -> bytes:
    """Return the head of an array of *count* values."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 65536:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


class Packed:
    """A value in MessagePack form.  Equal when the bytes are; its text shows nothing of it."""

    __slots__ = ("_data", "_make")

    _data: bytes | None
    _make: Callable[[], bytes] | None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._make = None

    @classmethod
    def of(cls, value: Any) -> "Packed":
        """Pack *value* now.  What is packed already is returned as it is."""
        return value if isinstance(value, Packed) else cls(msgpack.packb(value))

    @classmethod
    def when_needed(cls, make: Callable[[], bytes]) -> "Packed":
        """Call *make* at the first use of `data`: what every filter drops is never built."""
        packed = cls.__new__(cls)
        packed._data = None
        packed._make = make
        return packed

    @property
    def data(self) -> bytes:
        """The MessagePack bytes."""
        if self._data is None:
            assert self._make is not None
            self._data = self._make()
            self._make = None
        return self._data

    @property
    def value(self) -> Any:
        """The value, unpacked anew at each call."""
        return unpack(self.data)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, Packed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return "<Packed>"


#: Ids that are Python integers at a time: about a millisecond.  A million at once take 36 MB, and
#: half as long again.
IDS_AT_ONCE: Final = 16384


def _packed_pieces(ids: Sequence[int]) -> Iterator[bytes]:
    """Yield the MessagePack array of *ids* in pieces."""
    yield array_header(len(ids))
    for start in range(0, len(ids), IDS_AT_ONCE):
        piece = ids[start : start + IDS_AT_ONCE]
        yield msgpack.packb(piece)[len(array_header(len(piece))) :]


class TokenIds(Sequence[int]):
    """Token ids as `array('I')`, or packed, whichever came first; each made of the other once.

    They are not to be changed once they are here: requests, queues and records share them.
    """

    __slots__ = ("_array", "_count", "_packed")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """Copy *ids*.  Raises `OverflowError` or `TypeError` for what is no unsigned 32-bit id."""
        self._array: Ids | None = array("I", ids)
        self._packed: bytes | None = None
        self._count = len(self._array)

    @classmethod
    def of(cls, ids: Iterable[int]) -> "TokenIds":
        """Return *ids* as they are if they are `TokenIds`, else a copy."""
        return ids if isinstance(ids, TokenIds) else cls(ids)

    @classmethod
    def packing(cls, ids: Sequence[int]) -> "TokenIds":
        """Pack *ids*, whose slices are lists, such as a protobuf field.

        Packing them while they are at hand as Python integers costs half of doing it later.  They
        must be unsigned 32-bit ids, which is not checked.
        """
        count = len(ids)
        if count > IDS_AT_ONCE:
            return cls._of_packed(b"".join(_packed_pieces(ids)), count)
        return cls._of_packed(msgpack.packb(ids[:]), count)

    @classmethod
    def packing_in_pieces(cls, ids: Sequence[int]) -> Generator[None, None, "TokenIds"]:
        """Do what `packing` does, and yield after each piece, for a caller with other work.

        *ids* must not change meanwhile.
        """
        pieces = []
        for piece in _packed_pieces(ids):
            pieces.append(piece)
            yield
        return cls._of_packed(b"".join(pieces), len(ids))

    @classmethod
    def _of_packed(cls, packed: bytes, count: int) -> "TokenIds":
        made = cls.__new__(cls)
        made._array = None
        made._packed = packed
        made._count = count
        return made

    @property
    def array(self) -> Ids:
        """The ids, 4 bytes each."""
        if self._array is None:
            self._array = array("I", unpack(self.packed))
        return self._array

    @property
    def packed(self) -> bytes:
        """The ids as a MessagePack array, each in its shortest form."""
        if self._packed is None:
            assert self._array is not None
            self._packed = msgpack.packb(self._array.tolist())
        return self._packed

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(self.array)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Ids: ...
    def __getitem__(self, index: int | slice) -> "int | Ids":
        return self.array[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self.array == other.array
        if isinstance(other, array | list | tuple):
            return self._count == len(other) and self.array.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<TokenIds: {self._count}>"
