"""How long a pass of the simulated engine takes.  PURE.

A pass computes prompts (prefill) and next tokens (decode); it lasts as long as both together.  The
token that ends a prompt costs no decode.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Protocol

import attrs

from replay.errors import ConfigError

Coefficients = tuple[float, float, float]


@attrs.frozen(kw_only=True)
class Work:
    """What one pass computes."""

    prefill_tokens: int = 0
    prefill_requests: int = 0
    largest_prefill: int = 0
    """Tokens of the request with the most."""
    decode_requests: int = 0
    decode_context: int = 0
    """Tokens of all decoding requests, prompts included."""


class Timing(Protocol):
    """Tells the duration of a pass."""

    def pass_ms(self, work: Work) -> float:
        """Return milliseconds."""
        ...


def polynomial(coefficients: Coefficients, x: float) -> float:
    """Return a + b·x + c·x²."""
    a, b, c = coefficients
    return a + b * x + c * x * x


@attrs.frozen(kw_only=True)
class PolynomialTiming:
    """Prefill over the tokens of the pass, decode over the use of the KV room by its requests."""

    prefill: Coefficients
    decode: Coefficients
    capacity_tokens: int

    def pass_ms(self, work: Work) -> float:
        """Return milliseconds."""
        ms = polynomial(self.prefill, work.prefill_tokens) if work.prefill_requests else 0.0
        return ms + decode_ms(self.decode, work, self.capacity_tokens)


def decode_ms(coefficients: Coefficients, work: Work, capacity_tokens: int) -> float:
    """Return the milliseconds of decode: at least one, so that no two tokens coincide."""
    if not work.decode_requests:
        return 0.0
    use = min(1.0, work.decode_context / capacity_tokens)
    return max(1.0, polynomial(coefficients, use))


@attrs.frozen(kw_only=True)
class LinearTiming:
    """Prefill at a rate, decode with a price for each request."""

    prefill_tps: float
    decode_base_ms: float
    decode_per_req_ms: float

    def pass_ms(self, work: Work) -> float:
        """Return milliseconds."""
        ms = 1000 * work.prefill_tokens / self.prefill_tps
        if work.decode_requests:
            ms += self.decode_base_ms + self.decode_per_req_ms * work.decode_requests
        return ms


@attrs.frozen(kw_only=True)
class FitTiming:
    """Measured prefill and decode, as a calibration file has them."""

    prefill_points: Sequence[tuple[float, float]] = ()
    """(tokens, ms) of lone requests, rising; between them a straight line, beyond them the last
    slope, before them the first point's time."""
    prefill_pass: tuple[float, float] | None = None
    """(ms, ms a token) of a pass that computes several prompts."""
    prefill: Coefficients | None = None
    """Instead of points."""
    decode: Coefficients
    capacity_tokens: int
    """The KV room against which the decode was measured."""

    def pass_ms(self, work: Work) -> float:
        """Return milliseconds."""
        ms = self._prefill_ms(work) if work.prefill_requests else 0.0
        return ms + decode_ms(self.decode, work, self.capacity_tokens)

    def _prefill_ms(self, work: Work) -> float:
        if self.prefill is not None:
            return polynomial(self.prefill, work.prefill_tokens)
        if work.prefill_requests == 1 or self.prefill_pass is None:
            return self._between_points(work.prefill_tokens)
        base, per_token = self.prefill_pass
        together = base + per_token * work.prefill_tokens
        return max(together, self._between_points(work.largest_prefill))

    def _between_points(self, tokens: int) -> float:
        points = self.prefill_points
        if tokens <= points[0][0] or len(points) == 1:
            return points[0][1]
        above = min(bisect_right(points, (tokens, inf)), len(points) - 1)
        (low, low_ms), (high, high_ms) = points[above - 1], points[above]
        return low_ms + (tokens - low) * (high_ms - low_ms) / (high - low)


@attrs.frozen(kw_only=True)
class Calibration:
    """What a calibration file says."""

    timing: FitTiming
    request_overhead_ms: float


def read_calibration(text: str, *, source: str, capacity_tokens: int) -> Calibration:
    """Read a calibration file; keys that are not known are left alone.

    Prefill is `prefill_table_ms` ([[tokens, ms], …]) or `prefill_points_ms`
    ({"tokens": {"median_ms": …}}), with `prefill_pass_ms` ({"intercept_ms", "ms_per_token"}) for
    passes of several prompts; or, without points, the polynomial `prefill_fit_ms` or `prefill_ms`.
    Decode is `decode_fit_vs_utilisation_ms` or `decode_ms` over the use of `kv_capacity_tokens` (or
    `kv_capacity_blocks` of `block_size`; *capacity_tokens* where the file has none).
    Raises ConfigError, its problems beginning with *source*.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError([f"{source}: not JSON: {error}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{source}: must be an object"])
    try:
        points = _points(data)
        prefill = None if points else _coefficients(data, "prefill_fit_ms", "prefill_ms")
        decode = _coefficients(data, "decode_fit_vs_utilisation_ms", "decode_ms")
        if not points and prefill is None:
            raise ValueError("no prefill: prefill_table_ms, prefill_points_ms or prefill_fit_ms")
        if decode is None:
            raise ValueError("no decode: decode_fit_vs_utilisation_ms or decode_ms")
        timing = FitTiming(
            prefill_points=points,
            prefill_pass=_prefill_pass(data) if points else None,
            prefill=prefill,
            decode=decode,
            capacity_tokens=_capacity_tokens(data) or capacity_tokens,
        )
        overhead = _number(data.get("request_overhead_ms", 0), "request_overhead_ms")
    except ValueError as error:
        raise ConfigError([f"{source}: {error}"]) from None
    return Calibration(timing=timing, request_overhead_ms=overhead)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{name}: must be a number")
    return float(value)


def _points(data: Mapping[str, Any]) -> list[tuple[float, float]]:
    if "prefill_table_ms" in data:
        name, rows = "prefill_table_ms", data["prefill_table_ms"]
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 for row in rows
        ):
            raise ValueError(f"{name}: must be a list of [tokens, ms]")
        points = [(_number(tokens, name), _number(ms, name)) for tokens, ms in rows]
    elif "prefill_points_ms" in data:
        name, table = "prefill_points_ms", data["prefill_points_ms"]
        if not isinstance(table, dict) or not all(
            tokens.isdecimal() and isinstance(point, dict) for tokens, point in table.items()
        ):
            raise ValueError(f'{name}: must be an object of "tokens": {{"median_ms": ms}}')
        points = [
            (float(tokens), _number(point.get("median_ms"), f"{name}.{tokens}.median_ms"))
            for tokens, point in table.items()
        ]
    else:
        return []
    points.sort()
    if not points or any(low[0] == high[0] for low, high in pairwise(points)):
        raise ValueError(f"{name}: must have points, each at another number of tokens")
    return points


def _prefill_pass(data: Mapping[str, Any]) -> tuple[float, float] | None:
    name = "prefill_pass_ms"
    if name not in data:
        return None
    value = data[name]
    if not isinstance(value, dict):
        raise ValueError(f"{name}: must be an object of intercept_ms and ms_per_token")
    return (
        _number(value.get("intercept_ms"), f"{name}.intercept_ms"),
        _number(value.get("ms_per_token"), f"{name}.ms_per_token"),
    )


def _coefficients(data: Mapping[str, Any], *names: str) -> Coefficients | None:
    for name in names:
        if name in data:
            value = data[name]
            if isinstance(value, dict):
                keys = "abc" if "a" in value else "def"
                value = [value.get(key) for key in keys]
            if not isinstance(value, list) or len(value) != 3:
                raise ValueError(f"{name}: must have three coefficients")
            a, b, c = (_number(each, name) for each in value)
            return a, b, c
    return None


def _capacity_tokens(data: Mapping[str, Any]) -> int | None:
    if "kv_capacity_tokens" in data:
        value = _number(data["kv_capacity_tokens"], "kv_capacity_tokens")
    elif "kv_capacity_blocks" in data:
        value = _number(data["kv_capacity_blocks"], "kv_capacity_blocks")
        value *= _number(data.get("block_size"), "block_size")
    else:
        return None
    if value < 1:
        raise ValueError("kv_capacity_tokens: must be at least 1")
    return int(value)
