"""PURE.  Attrs classes that travel as MessagePack maps with string keys.

A map keeps the bytes in which it came, and gives the same bytes back: the order of the keys, the
width of the numbers and keys that this version does not know all survive.  A map made here is
packed once, with the keys in the order of the fields.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Self

import attrs
import msgpack

from replay.errors import ReplayError
from replay.packed import NIL, Packed, TokenIds, map_header, pack, pack_float32

_FIELD: Final = "replay.wire_map"


class WireMapError(ReplayError):
    """The bytes are not the map that they should be.  The text names the key, never the value."""


class _Kind(NamedTuple):
    """How the values of a field look in Python and on the wire."""

    pack: Callable[[Any], bytes]
    read: Callable[[Any], Any]
    """Makes the field's value: of an unpacked value, or of the bytes if `types` is empty."""
    types: tuple[type, ...] = ()
    """What an unpacked value may be."""
    holds_map: bool = False


INTEGER: Final = _Kind(pack, int, (int,))
BOOLEAN: Final = _Kind(pack, bool, (bool,))
TEXT: Final = _Kind(msgpack.packb, str, (str,))
FLOAT32: Final = _Kind(lambda value: pack_float32(float(value)), float, (float, int))
FLOAT64: Final = _Kind(lambda value: pack(float(value)), float, (float, int))
#: Strings or integers.
ARRAY: Final = _Kind(msgpack.packb, tuple, (list,))
#: Token ids.
IDS: Final = _Kind(attrgetter("packed"), TokenIds, (list,))
#: Content that is passed on as it is: a `Packed`.
ANYTHING: Final = _Kind(attrgetter("data"), Packed)


def a_map(of: "type[WireMap]") -> _Kind:
    """Return the kind of a field that holds another map."""
    return _Kind(attrgetter("packed"), of.unpacked, holds_map=True)


def wire(
    kind: _Kind, *, key: str | None = None, nil: bool = False, default: Any = None, **options: Any
) -> Any:
    """Declare a field.  Unset (None) it is absent on the wire, or nil with *nil*.

    *key* is the name on the wire, if it differs from the field's; *options* go to `attrs.field`.
    """
    return attrs.field(default=default, metadata={_FIELD: (kind, key, nil)}, **options)


class _Entry(NamedTuple):
    field: str
    key: str
    kind: _Kind
    head: bytes
    """The packed key."""
    unset: bytes | None
    """What an unset field is on the wire; None: nothing."""


class _Plan(NamedTuple):
    entries: tuple[_Entry, ...]
    by_key: dict[str, _Entry]


@attrs.frozen(kw_only=True, repr=False)
class WireMap:
    """A map on the wire.  A subclass declares its keys with `wire`, in wire order."""

    #: What the map is called in an error.
    wire_name: ClassVar[str] = "map"
    _entries: ClassVar[dict[str, _Entry]]
    """The declared fields by key, in wire order."""
    _packer: "ClassVar[MapPacker]"
    _map_fields: ClassVar[tuple[str, ...]]
    """The fields that hold maps."""

    unknown: Mapping[str, Packed] = attrs.field(factory=dict)
    """What came under keys that this version does not know."""
    _packed: bytes | None = attrs.field(default=None, init=False, eq=False)

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        cls._entries = {}
        for field in attrs.fields(cls):
            if _FIELD in field.metadata:
                kind, name, nil = field.metadata[_FIELD]
                key = name or field.name
                head = pack(key)
                cls._entries[key] = _Entry(field.name, key, kind, head, head + NIL if nil else None)
        if cls._entries:
            cls._packer = MapPacker(cls)
        cls._map_fields = tuple(
            entry.field for entry in cls._entries.values() if entry.kind.holds_map
        )

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Read a map; raises `WireMapError`."""
        fields: dict[str, Any] = {}
        unknown: dict[str, Packed] = {}
        key: Any = None
        try:
            unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(data)))
            unpacker.feed(data)
            for _ in range(unpacker.read_map_header()):
                key = None
                key = unpacker.unpack()
                if not isinstance(key, str):
                    raise WireMapError(f"{cls.wire_name} has a key that is no string")
                entry = cls._entries.get(key)
                start = unpacker.tell()
                if entry is not None and entry.kind.types:
                    value = unpacker.unpack()
                    if value is not None and not isinstance(value, entry.kind.types):
                        raise WireMapError(f"{cls.wire_name}.{key} is of the wrong type")
                else:
                    unpacker.skip()
                    value = data[start : unpacker.tell()]
                if entry is None:
                    unknown[key] = Packed(value)
                elif value is not None and value != NIL:
                    fields[entry.field] = entry.kind.read(value)
            if unpacker.tell() != len(data):
                raise WireMapError(f"{cls.wire_name} is followed by other bytes")
            result = cls(**fields, unknown=unknown)
        except WireMapError:
            raise
        except Exception as error:  # msgpack raises many kinds, some with the content in the text
            place = f"{cls.wire_name}.{key}" if isinstance(key, str) else cls.wire_name
            raise WireMapError(f"{place} does not decode: {type(error).__name__}") from None
        object.__setattr__(result, "_packed", data)
        return result

    @property
    def packed(self) -> bytes:
        """The map in MessagePack: as it came, or else packed once."""
        if self._packed is None:
            object.__setattr__(self, "_packed", self._packer.pack(self))
        assert self._packed is not None
        return self._packed

    def unknown_keys(self) -> tuple[str, ...]:
        """Return the paths of all keys, here and below, that this version does not know."""
        paths = list(self.unknown)
        for entry in self._entries.values():
            value = getattr(self, entry.field)
            if isinstance(value, WireMap):
                paths += [f"{entry.key}.{path}" for path in value.unknown_keys()]
        return tuple(paths)

    def known_only(self) -> Self:
        """Return the map without the keys, here and below, that this version does not know."""
        changes: dict[str, Any] = {"unknown": {}} if self.unknown else {}
        for name in self._map_fields:
            value = getattr(self, name)
            if value is not None:
                known = value.known_only()
                if known is not value:
                    changes[name] = known
        return attrs.evolve(self, **changes) if changes else self

    def __repr__(self) -> str:
        # Any of it may be a prompt, so no value appears.
        return f"<{type(self).__name__}>"


class MapPacker:
    """Packs maps of one class.  What is the same for all of them is prepared once.

    *replaced* holds, by name of a field, what goes in the place of the value that a map has.
    """

    __slots__ = ("_items", "_rows")

    def __init__(self, of: type[WireMap], replaced: Mapping[str, Any] | None = None) -> None:
        rows: list[tuple[bytes, Callable[[Any], bytes], bytes | None]] = []
        names = []
        for entry in of._entries.values():
            if replaced is None or entry.field not in replaced:
                rows.append((entry.head, entry.kind.pack, entry.unset))
                names.append(entry.field)
                continue
            value = replaced[entry.field]
            constant = entry.unset if value is None else entry.head + entry.kind.pack(value)
            if constant is not None:
                rows.append((b"", _Constant(constant), constant))
                names.append(entry.field)
        self._rows = tuple(rows)
        # All values in one call: asking for each costs more than the rest.  The first one is asked
        # for twice, so that the answer is a tuple also for a single field.
        self._items = attrgetter(*names[:1], *names)

    def pack(self, value: WireMap) -> bytes:
        """Return the map: known keys in the order of the fields, then the unknown ones."""
        pieces = []
        for (head, pack_item, unset), item in zip(self._rows, self._items(value)[1:], strict=True):
            if item is not None:
                pieces.append(head + pack_item(item))
            elif unset is not None:
                pieces.append(unset)
        for key, unknown in value.unknown.items():
            pieces.append(pack(key) + unknown.data)
        return map_header(len(pieces)) + b"".join(pieces)


@attrs.frozen
class _Constant:
    """What is packed in the place of any value."""

    packed: bytes

    def __call__(self, value: Any) -> bytes:
        return self.packed
