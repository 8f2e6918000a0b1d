"""Chooses the timing of a realistic engine, and reads the calibration file that it may name."""

from pathlib import Path

from replay.config.engines import RealisticConfig
from replay.engines.scheduler import kv_blocks
from replay.engines.timing import LinearTiming, PolynomialTiming, Timing, read_calibration
from replay.errors import ConfigError


def load_timing(config: RealisticConfig) -> tuple[Timing, float]:
    """Return the timing that *config* names, and the overhead of a request in milliseconds.

    A calibration file's overhead counts unless *config* has one.  Raises ConfigError.
    """
    capacity_tokens = kv_blocks(config) * config.block_size
    if config.timing == "linear":
        linear = LinearTiming(
            prefill_tps=config.prefill_tps,
            decode_base_ms=config.decode_base_ms,
            decode_per_req_ms=config.decode_per_req_ms,
        )
        return linear, config.request_overhead_ms
    if config.timing.startswith("fit:"):
        path = config.timing.removeprefix("fit:")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"{path}: cannot be read: {error}"]) from error
        fit = read_calibration(text, source=path, capacity_tokens=capacity_tokens)
        return fit.timing, config.request_overhead_ms or fit.request_overhead_ms
    polynomial = PolynomialTiming(
        prefill=config.prefill_poly, decode=config.decode_poly, capacity_tokens=capacity_tokens
    )
    return polynomial, config.request_overhead_ms
