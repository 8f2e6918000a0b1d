"""PURE.  Reference prompts out of JSON lines: what a gateway's rendering of a request is held
against.

A line has `request_id`, `id` or `rid`, and the ids as `prompt_token_ids`, `input_ids`, `token_ids`
or `prompt_ids`.  A list of lists is the prompts of an array: the k-th is that of `{id}-p{k}`.
"""

from collections.abc import Iterable, Iterator

from replay.player.observation import Observation
from replay.player.traces.fault import Notes
from replay.player.traces.fields import read_rows
from replay.player.traces.lines import Line

NAME_KEYS = ("request_id", "id", "rid")
PROMPT_KEYS = ("prompt_token_ids", "input_ids", "token_ids", "prompt_ids")


def read_references(lines: Iterable[Line], notes: Notes) -> Iterator[Observation]:
    """Read reference prompts.  Raises TraceError with the line at fault."""
    for row in read_rows(lines, notes):
        name_key = next((key for key in NAME_KEYS if row.values.get(key) is not None), None)
        prompt_key = next((key for key in PROMPT_KEYS if row.values.get(key) is not None), None)
        if name_key is None or prompt_key is None:
            raise row.fault(
                f"needs one of {', '.join(NAME_KEYS)} and one of {', '.join(PROMPT_KEYS)}"
            )
        name = row.text(name_key)
        prompts = row.sequence(prompt_key) or []
        if prompts and all(isinstance(prompt, list) for prompt in prompts):
            named = [(f"{name}-p{place}", prompt) for place, prompt in enumerate(prompts)]
        else:
            named = [(str(name), prompts)]
        for request_id, prompt in named:
            ids = row.as_ids(prompt_key, prompt)
            yield Observation(
                request_id=request_id,
                position=row.line,
                prompt_ids=ids,
                prompt_tokens=len(ids),
            )
