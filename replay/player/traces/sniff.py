"""PURE.  Tells by its first bytes what a source is.  The name of a file says nothing."""

import json
from itertools import islice
from typing import Any, Final

from replay.plane.record_file import HEADER
from replay.player.traces import aiperf, azure, burstgpt, capture, dynamo, script
from replay.player.traces.comma import read_header
from replay.player.traces.fault import TraceError
from replay.player.traces.formats import RECORDS, REFERENCES, RESULTS
from replay.player.traces.lines import split_lines
from replay.player.traces.unpacking import is_packed

#: How much of a source is looked at: a line of a capture can be long, its keys are known before its
#: end.
HEAD_BYTES = 1 << 20
#: Stands for a value that is not there to its end.
_CUT: Final = object()

_PROMPT_KEYS = {"prompt_token_ids", "input_ids", "token_ids", "prompt_ids"}
_PICKLE_PROTOCOLS = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_PICKLE_TEXTS = (b"(dp", b"(lp", b"}q\x00", b"]q\x00")


def sniff(head: bytes) -> str:
    """Return the name of the format whose first bytes, unpacked, are *head*.

    Raises TraceError for an empty source, a pickle (SGLang's request dumps are some), and what no
    format begins with.
    """
    if head.startswith(_PICKLE_PROTOCOLS) or head.startswith(_PICKLE_TEXTS):
        raise TraceError(
            0,
            "is a Python pickle, as SGLang's request dumps are; loading one can run any code "
            "that is in it, so it is not read: convert it to JSONL where you trust it",
        )
    if head.startswith(HEADER):
        return RECORDS
    if head.startswith(b"replay-records "):
        raise TraceError(0, "is a record file of a version that is not read here")
    if is_packed(head):
        raise TraceError(0, "is packed twice: unpack it once")
    if b"\0" in head[:4096]:
        raise TraceError(0, "is binary and no record file")
    lines = list(islice(split_lines([head]), 50))
    if not lines:
        raise TraceError(0, "is empty: it has no request")
    first = lines[0]
    if first.data.lstrip().startswith(b"{"):
        values: dict[str, Any] = {}
        for line in lines:
            values = _object(line.data) | values
        return _by_keys(values, first.number)
    if first.data.lstrip().startswith(b"["):
        raise TraceError(first.number, "is a JSON array; a trace has one object a line")
    columns = set(read_header(first.data))
    if columns >= set(azure.COLUMNS):
        return "azure"
    if columns >= set(burstgpt.COLUMNS):
        return "burstgpt"
    raise TraceError(first.number, "is of no format that is known here")


def _object(data: bytes) -> dict[str, Any]:
    """Return the object of a line, or of one that is cut: what was whole of it."""
    text = data.decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _cut_object(text)
    return value if isinstance(value, dict) else {}


def _cut_object(text: str) -> dict[str, Any]:
    """Return what stands at the top of a cut object; the last key may have the value `_CUT`."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    place = text.find("{") + 1
    try:
        while True:
            place = _after_blanks(text, place)
            key, place = decoder.raw_decode(text, place)
            if not isinstance(key, str):
                break
            found[key] = _CUT
            place = _after_blanks(text, place)
            if text[place : place + 1] != ":":
                break
            found[key], place = decoder.raw_decode(text, _after_blanks(text, place + 1))
            place = _after_blanks(text, place)
            if text[place : place + 1] != ",":
                break
            place += 1
    except (ValueError, RecursionError):
        pass
    return found


def _after_blanks(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _by_keys(values: dict[str, Any], line: int) -> str:
    keys = values.keys()
    if values.get("schema") == "replay.results.v1":
        return RESULTS
    # Of a capture's line that is longer than the head only the first keys are seen, the last of
    # them without its value.
    if keys >= capture.OWN_KEYS or ("request_id" in keys and values.get("input_ids") is _CUT):
        return "capture"
    if keys >= script.OWN_KEYS:
        return "script"
    stated = values.get("type")
    if stated in aiperf.TYPES or keys & {"turns", "text", "texts", "images", "image"}:
        return "aiperf"
    sized = keys & {"input_length", "input_tokens", "messages", "text_input"}
    if sized and keys & dynamo.OWN_KEYS:
        return "dynamo"
    if {"input_length", "output_length"} <= keys and not keys & {"messages", "text_input"}:
        return "mooncake"
    if sized:
        return "dynamo"
    if keys & {"request_id", "id", "rid"} and keys & _PROMPT_KEYS:
        return REFERENCES
    raise TraceError(line, "is of no format that is known here: its keys are those of none")
