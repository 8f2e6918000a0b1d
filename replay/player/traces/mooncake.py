"""PURE.  Mooncake's JSONL: `timestamp` (ms from the start), `input_length`, `output_length`,
`hash_ids`.

Each id names a block of 512 prompt tokens, the last one perhaps a part of it.  A row asks for
exactly `output_length` tokens: that is `max_new_tokens` with `ignore_eos`.
"""

from collections.abc import Iterable, Iterator

from replay.player.arrival import Arrival, BlockPrompt, LengthPrompt, Parameters
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, kind_of, read_rows
from replay.player.traces.lines import Line
from replay.player.traces.options import ReadOptions

TIME_UNIT = "ms"
#: No model reads a prompt so long: the value is of another column, or of another unit.
LONGEST_PROMPT = 1 << 24
_KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the rows of a trace.  Raises TraceError with the line at fault."""
    unit_ns = options.unit_ns(TIME_UNIT)
    for row in read_rows(lines, notes):
        notes.ignore(row.values.keys() - _KEYS)
        yield Arrival(
            position=row.line,
            request_id=f"mooncake-{row.line}",
            time_ns=row.time_ns("timestamp", unit_ns),
            prompt=block_prompt(
                row,
                row.count("input_length", minimum=1, maximum=LONGEST_PROMPT),
                options.block_size,
            ),
            parameters=fixed_length(row.count("output_length")),
        )


def fixed_length(output_tokens: int) -> Parameters:
    """Return parameters that ask for *output_tokens* tokens, no more and no less."""
    return Parameters(max_new_tokens=output_tokens, ignore_eos=True)


def block_prompt(row: Row, length: int, block_size: int) -> BlockPrompt | LengthPrompt:
    """Return the prompt that `hash_ids` of *row* describe.

    The ids have to cover the prompt, with or without its last part of a block.
    """
    hash_ids = row.sequence("hash_ids")
    if hash_ids is None:
        return LengthPrompt(length=length, own=row.line)
    for number in hash_ids:
        if type(number) is not int or not -(1 << 63) <= number < 1 << 64:
            raise row.fault(f"hash_ids: must hold 64-bit integers, holds {kind_of(number)}")
    whole, part = divmod(length, block_size)
    blocks = whole + (part > 0)
    if len(hash_ids) not in (whole, blocks):
        raise row.fault(
            f"hash_ids: {len(hash_ids)} ids for {length} tokens, "
            f"which are {blocks} blocks of {block_size}"
        )
    return BlockPrompt(hash_ids=tuple(hash_ids), length=length, block_size=block_size, own=row.line)
