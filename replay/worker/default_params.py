"""Sampling values that a worker puts where a request leaves a field unset.

PURE.  A field with presence is unset when it is absent; a set zero stays.  A field without presence
is unset when it holds the zero of its type (0, false, empty): proto3 cannot say more, so a default
of `true` for `ignore_eos` holds for every request.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replay._proto import tokenspeed_scheduler_pb2 as pb

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
INT32_MAX = 2**31 - 1
FLOAT_MAX = (2 - 2**-23) * 2.0**127

#: `n` travels as one byte in a tap's record.
MOST_CHOICES = 255


def default_sampling_faults(defaults: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of each entry of *defaults* that cannot be used.

    The names are those of the wire's `SamplingParams`.  Types are exact: `true` is no 1.
    """
    for name, value in defaults.items():
        if name not in _RULES:
            yield name, f"is no sampling parameter; known are {', '.join(_RULES)}"
            continue
        wanted, is_valid = _RULES[name]
        if not is_valid(value):
            yield name, f"must be {wanted}"
    if _crosses(defaults.get("min_new_tokens"), defaults.get("max_new_tokens")):
        yield "min_new_tokens", "must not be above max_new_tokens"


def apply_default_sampling_params(
    message: pb.GenerateRequest, defaults: Mapping[str, Any]
) -> pb.GenerateRequest:
    """Return *message* with *defaults* in its unset fields.

    *message* itself is never changed, because the capture shows what was sent; it is copied only
    when a default applies.  `defaults` has passed `default_sampling_faults`.  A default that would
    contradict what the request sets (`min_new_tokens` above its `max_new_tokens`) does not apply:
    it must not turn a good request into a bad one.
    """
    sent = message.sampling_params
    missing = {name: value for name, value in defaults.items() if _applies(sent, name, value)}
    if "max_new_tokens" in missing and _crosses(sent.min_new_tokens, missing["max_new_tokens"]):
        del missing["max_new_tokens"]
    if sent.HasField("max_new_tokens") and _crosses(
        missing.get("min_new_tokens"), sent.max_new_tokens
    ):
        del missing["min_new_tokens"]
    if not missing:
        return message
    changed = pb.GenerateRequest()
    changed.CopyFrom(message)
    params = changed.sampling_params
    for name, value in missing.items():
        if isinstance(value, list | tuple):
            getattr(params, name).extend(value)
        else:
            setattr(params, name, value)
    return changed


def _applies(sent: pb.SamplingParams, name: str, value: object) -> bool:
    if sent.DESCRIPTOR.fields_by_name[name].has_presence:
        return not sent.HasField(name)
    return bool(value) and not getattr(sent, name)


def _crosses(least: object, most: object) -> bool:
    return type(least) is int and type(most) is int and least > most


def _is_float(value: object, least: float, most: float, *, is_open: bool = False) -> bool:
    """Say whether *value* is within bounds as the wire's 32 bits hold it; *is_open*: above *least*.

    A number too large for 32 bits becomes infinite there, one too small becomes 0.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except (OverflowError, struct.error):
        return False
    return least <= single <= most and not (is_open and single == least)


def _is_int(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_stop_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(each, str) and each and _is_unicode(each) for each in value
    )


def _is_unicode(text: str) -> bool:
    """Say whether *text* can be a string of the wire: JSON can name lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_int(each, 0, UINT32_MAX) for each in value)


#: What each value must be, in words and as a test.
_RULES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "temperature": ("a finite number of at least 0", lambda value: _is_float(value, 0, FLOAT_MAX)),
    "top_p": (
        "a number above 0 and at most 1",
        lambda value: _is_float(value, 0, 1, is_open=True),
    ),
    "top_k": (
        "an integer of at least 1, or -1 or 0 for all",
        lambda value: _is_int(value, -1, INT32_MAX),
    ),
    "min_p": ("a number from 0 to 1", lambda value: _is_float(value, 0, 1)),
    "frequency_penalty": ("a number from -2 to 2", lambda value: _is_float(value, -2, 2)),
    "presence_penalty": ("a number from -2 to 2", lambda value: _is_float(value, -2, 2)),
    "repetition_penalty": (
        "a finite number above 0",
        lambda value: _is_float(value, 0, FLOAT_MAX, is_open=True),
    ),
    "max_new_tokens": ("an integer from 0 to 2^32-1", lambda value: _is_int(value, 0, UINT32_MAX)),
    "min_new_tokens": ("an integer from 0 to 2^32-1", lambda value: _is_int(value, 0, UINT32_MAX)),
    "stop": ("a list of texts that are not empty", _is_stop_list),
    "stop_token_ids": ("a list of integers from 0 to 2^32-1", _is_id_list),
    "ignore_eos": ("true or false", _is_bool),
    "skip_special_tokens": ("true or false", _is_bool),
    "spaces_between_special_tokens": ("true or false", _is_bool),
    "n": (f"an integer from 1 to {MOST_CHOICES}", lambda value: _is_int(value, 1, MOST_CHOICES)),
    "no_stop_trim": ("true or false", _is_bool),
    "sampling_seed": ("an integer from 0 to 2^64-1", lambda value: _is_int(value, 0, UINT64_MAX)),
}
