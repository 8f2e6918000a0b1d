"""Mutations that know what a frame is."""

from random import Random

from replay.rpc import frames

_INTERESTING = (0, 1, 2, 4, 5, 6, 8, 255, 16_383, 16_384, 65_535, 2**31 - 1, 2**31, 2**32 - 1)


def parse(data: bytes) -> tuple[bytes, list[bytes]]:
    """Split a conversation into its preface and its frames; the last one may be cut off."""
    at = len(frames.PREFACE) if data.startswith(frames.PREFACE) else 0
    preface, found = data[:at], []
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        found.append(data[at:end])
        at = end
    return preface, found


def mutate(random: Random, conversations: list[bytes]) -> bytes:
    """Make a new conversation out of known ones."""
    preface, parts = parse(random.choice(conversations))
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        _change(random, parts, conversations)
    data = bytearray(preface + b"".join(parts))
    if data and random.random() < 0.3:
        for _ in range(random.choice((1, 2, 5))):
            data[random.randrange(len(data))] = random.randrange(256)
    if random.random() < 0.1:
        del data[random.randrange(len(data) + 1) :]
    return bytes(data)


def _change(random: Random, parts: list[bytes], conversations: list[bytes]) -> None:
    if not parts:
        return
    at = random.randrange(len(parts))
    choice = random.randrange(8)
    if choice == 0:
        del parts[at]
    elif choice == 1:
        parts[at:at] = [parts[at]] * random.choice((1, 2, 30))
    elif choice == 2:
        other = random.randrange(len(parts))
        parts[at], parts[other] = parts[other], parts[at]
    elif choice == 3:
        _, foreign = parse(random.choice(conversations))
        start = random.randrange(len(foreign) + 1)
        parts[at:at] = foreign[start : start + random.randrange(1, 6)]
    else:
        parts[at] = _change_frame(random, parts[at], choice)


def _change_frame(random: Random, part: bytes, choice: int) -> bytes:
    kind, flags = part[3:4], part[4:5]
    stream_id = int.from_bytes(part[5:9], "big")
    payload = part[9:]
    if choice == 4:
        kind = bytes((random.choice((*range(10), 10, 255)),))
    elif choice == 5:
        flags = bytes((random.choice((0, 1, 4, 5, 8, 9, 0x20, 0x2D, 255)),))
    elif choice == 6:
        stream_id = random.choice((0, 1, 3, stream_id + 2, random.choice(_INTERESTING)))
    else:
        number = random.choice(_INTERESTING).to_bytes(4, "big")
        at = random.randrange(len(payload) + 1)
        payload = payload[:at] + number + payload[at + 4 :]
    header = len(payload).to_bytes(3, "big") + (kind or b"\0") + (flags or b"\0")
    return header + (stream_id & 0xFFFFFFFF).to_bytes(4, "big") + payload
