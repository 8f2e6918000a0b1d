"""Header blocks (RFC 7541): a decoder that can tell whether its table changed, and literal
encoding.

Rules kept here:

* the dynamic table is always brought up to date, also for a list that is too large to be used: the
  blocks that follow depend on it;
* what a peer sends is bounded: a one-byte reference can stand for 4 KB, so fields beyond the list
  limit are counted and thrown away;
* `version` changes with the table, so that a block of the same bytes that changed nothing can be
  taken from a cache (most requests of a gateway have byte-equal blocks).

The static table and the Huffman code are `hpack`'s.
"""

from collections import deque
from functools import lru_cache

from hpack import HPACKError
from hpack.hpack import HeaderTable
from hpack.huffman_table import decode_huffman

Field = tuple[bytes, bytes]

_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_STATIC_LENGTH = len(_STATIC)
#: What RFC 7541 counts for an entry beside its name and value.
_ENTRY_OVERHEAD = 32
#: Longest Huffman string that is worth a place in the cache; bounds the cache's memory too.
_CACHED_STRING = 128


class HeaderBlockError(ValueError):
    """The block cannot be decoded; the connection's compression state is lost with it."""


class HeaderListTooLargeError(ValueError):
    """The list is larger than we allow.  The table is up to date, so the connection can go on."""


class HeaderDecoder:
    """The decoding half of HPACK for one connection."""

    __slots__ = ("_entries", "_limit", "_max_list", "_max_table", "_size", "version")

    def __init__(self, *, max_list_bytes: int, max_table_bytes: int = 4096) -> None:
        self._entries: deque[Field] = deque()
        self._size = 0
        self._limit = self._max_table = max_table_bytes
        self._max_list = max_list_bytes
        self.version = 0

    @property
    def entries(self) -> list[Field]:
        """The dynamic table, newest first."""
        return list(self._entries)

    def decode(self, block: bytes) -> list[Field]:
        """Decode one whole block.

        Raises HeaderBlockError for bytes that are no header block, HeaderListTooLargeError for a
        list (names, values and 32 bytes each) above the limit.
        """
        fields: list[Field] = []
        entries = self._entries
        position, end, total = 0, len(block), 0
        may_resize = True
        try:
            while position < end:
                first = block[position]
                position += 1
                if first & 0x80:  # indexed field
                    index = first & 0x7F
                    if index == 0x7F:
                        index, position = _integer(block, position, index)
                    if 0 < index < _STATIC_LENGTH:
                        field = _STATIC[index]
                    elif index:
                        field = entries[index - _STATIC_LENGTH]
                    else:
                        raise HeaderBlockError("index 0")
                elif first & 0xE0 == 0x20:  # table size update
                    size = first & 0x1F
                    if size == 0x1F:
                        size, position = _integer(block, position, size)
                    if not may_resize or size > self._max_table:
                        raise HeaderBlockError("table size update")
                    self._limit = size
                    self._make_room(0)
                    continue
                else:  # literal; 0x40: to be added to the table
                    mask = 0x3F if first & 0x40 else 0x0F
                    index = first & mask
                    if index == mask:
                        index, position = _integer(block, position, index)
                    if index >= _STATIC_LENGTH:
                        name = entries[index - _STATIC_LENGTH][0]
                    elif index:
                        name = _STATIC[index][0]
                    else:
                        name, position = _string(block, position)
                    value, position = _string(block, position)
                    field = (name, value)
                    if first & 0x40:
                        self._add(field)
                may_resize = False
                total += _ENTRY_OVERHEAD + len(field[0]) + len(field[1])
                if total <= self._max_list:
                    fields.append(field)
        except IndexError:
            raise HeaderBlockError("truncated block or unknown index") from None
        if total > self._max_list:
            raise HeaderListTooLargeError(f"header list of {total} bytes")
        return fields

    def _add(self, field: Field) -> None:
        size = _ENTRY_OVERHEAD + len(field[0]) + len(field[1])
        self._make_room(size)
        if size <= self._limit:  # else: a field larger than the table empties it
            self._entries.appendleft(field)
            self._size += size

    def _make_room(self, size: int) -> None:
        self.version += 1
        entries = self._entries
        while entries and self._size + size > self._limit:
            name, value = entries.pop()
            self._size -= _ENTRY_OVERHEAD + len(name) + len(value)


def _integer(block: bytes, position: int, value: int) -> tuple[int, int]:
    """Read the rest of an integer whose prefix was full."""
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:  # nothing that large is meant
            raise HeaderBlockError("integer too long")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    first = block[position]
    position += 1
    length = first & 0x7F
    if length == 0x7F:
        length, position = _integer(block, position, length)
    end = position + length
    if end > len(block):
        raise HeaderBlockError("truncated string")
    text = block[position:end]
    if first & 0x80:
        text = _huffman_cached(text) if length <= _CACHED_STRING else _huffman(text)
    return text, end


def _huffman(text: bytes) -> bytes:
    try:
        return bytes(decode_huffman(text))
    except HPACKError as error:
        raise HeaderBlockError("Huffman code") from error


_huffman_cached = lru_cache(1024)(_huffman)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field as a literal without indexing or Huffman: right in every state of the
    table."""
    return b"".join((b"\0", _length(len(name)), name, _length(len(value)), value))


def _length(number: int) -> bytes:
    if number < 0x7F:
        return bytes((number,))
    number -= 0x7F
    out = bytearray((0x7F,))
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
