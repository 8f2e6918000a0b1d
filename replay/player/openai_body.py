"""PURE.  A planned request as an OpenAI request, and the events of its answer.

Token ids and text go to `/completions`, messages to `/chat/completions`.  Parameters have the names
that vLLM and SGLang take beside OpenAI's own.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from replay.player.answer_log import AnswerLog
from replay.player.outgoing import Outgoing

#: Parameters that have the same name there.
_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "n",
)
_OTHER_NAMES = (
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("sampling_seed", "seed"),
)
_DONE = b"[DONE]"


class AnswerError(Exception):
    """An answer is not what it should be.  The text is a label, without content."""


def openai_request(outgoing: Outgoing, model: str) -> tuple[str, bytes]:
    """Return the path below `/v1` and the body.  Raises ValueError for NaN and infinities."""
    body: dict[str, Any] = {"model": model, "stream": outgoing.stream}
    if outgoing.stream:
        body["stream_options"] = {"include_usage": True}
    is_chat = outgoing.messages is not None
    if is_chat:
        body["messages"] = list(outgoing.messages or ())
        if outgoing.tools is not None:
            body["tools"] = list(outgoing.tools)
    else:
        body["prompt"] = outgoing.text if outgoing.ids is None else outgoing.ids.tolist()
    parameters = outgoing.parameters
    for name, theirs in (*((name, name) for name in _SAME_NAMES), *_OTHER_NAMES):
        value = getattr(parameters, name)
        if value is not None:
            body[theirs] = value
    for name, values in (
        ("stop", parameters.stop),
        ("stop_token_ids", parameters.stop_token_ids),
        ("logit_bias", parameters.logit_bias),
    ):
        if values:
            body[name] = dict(values) if isinstance(values, dict) else list(values)
    if parameters.return_logprob:
        top = parameters.top_logprobs_num or 0
        body.update({"logprobs": True, "top_logprobs": top} if is_chat else {"logprobs": top})
    path = "/chat/completions" if is_chat else "/completions"
    # NaN is refused here with a ValueError rather than sent as a word that is not JSON.
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return path, text.encode()


class EventLines:
    """Cuts a stream of server-sent events into the data of each."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each line that ends in *data*; the mark of the end is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload and payload != _DONE:
                    yield payload


def note_event(log: AnswerLog, payload: bytes, now_ns: int) -> None:
    """Note one event of a stream.  Raises AnswerError for what is none, and for an error in it."""
    event = _object(payload)
    if event.get("error") is not None:
        raise AnswerError("error in the stream")
    _note_usage(log, event.get("usage"))
    for choice in _choices(event):
        index = choice.get("index") or 0
        piece = choice.get("text")
        if piece is None:
            piece = (choice.get("delta") or {}).get("content")
        if isinstance(piece, str):
            log.text(index, piece, now_ns)
        if choice.get("finish_reason"):
            log.finish(index, str(choice["finish_reason"]))


def note_whole(log: AnswerLog, payload: bytes, now_ns: int) -> None:
    """Note an answer that came in one piece.  Raises AnswerError for what is none."""
    answer = _object(payload)
    for choice in _choices(answer):
        index = choice.get("index") or 0
        piece = choice.get("text")
        if piece is None:
            piece = (choice.get("message") or {}).get("content")
        if isinstance(piece, str):
            log.text(index, piece, now_ns)
        if choice.get("finish_reason"):
            log.finish(index, str(choice["finish_reason"]))
    _note_usage(log, answer.get("usage"))


def _note_usage(log: AnswerLog, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int):
        log.prompt_tokens = prompt
    if isinstance(completion, int):
        log.counted(completion)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        log.cached_tokens = details["cached_tokens"]


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise AnswerError("not JSON") from None
    if not isinstance(value, dict):
        raise AnswerError("not an object")
    return value


def _choices(value: dict[str, Any]) -> Iterable[dict[str, Any]]:
    choices = value.get("choices") or ()
    return [choice for choice in choices if isinstance(choice, dict)]
