"""A planned request on the wire: every value arrives, and what is unset stays unset."""

from array import array
from typing import Any

import attrs
import pytest
from google.protobuf import json_format

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.player.arrival import Parameters
from replay.player.generate_request import generate_request
from replay.player.outgoing import Outgoing
from replay.player.traces.capture import read as read_capture
from replay.player.traces.fault import Notes
from replay.player.traces.lines import split_lines
from replay.player.traces.options import ReadOptions
from replay.worker.capture import Extended, capture_line

#: A value for each parameter that its field can hold, and that no default equals.
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.5,
    "max_new_tokens": 0,
    "min_new_tokens": 3,
    "stop": ("END", "\n"),
    "stop_token_ids": (8, 9),
    "ignore_eos": True,
    "no_stop_trim": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "n": 2,
    "sampling_seed": 2**64 - 1,
    "logit_bias": {"5": -1.5},
    "constraint": ("json_schema", "{}"),
    "custom_params": {"a": 1.0},
    "return_logprob": True,
    "logprob_start_len": -1,
    "top_logprobs_num": 2,
    "token_ids_logprob": (4,),
    "data_parallel_rank": 3,
}


def sent(**parameters: Any) -> pb.GenerateRequest:
    return generate_request(
        Outgoing(
            request_id="r-1",
            ids=array("I", (5, 6)),
            parameters=Parameters(**parameters),
            stream=True,
        )
    )


def captured(message: pb.GenerateRequest) -> Parameters:
    extended = Extended(arrival_unix_ns=1, metadata={})
    line = capture_line(message, extended=extended)
    [arrival] = read_capture(split_lines([line]), ReadOptions(), Notes())
    assert arrival.request_id == "r-1"
    assert arrival.stream is True
    return arrival.parameters


def test_a_value_is_tested_for_every_parameter() -> None:
    assert VALUES.keys() == {field.name for field in attrs.fields(Parameters)}


@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"custom_params"}))
def test_each_value_that_was_sent_is_in_the_capture_as_it_was(name: str) -> None:
    message = sent(**{name: VALUES[name]})
    assert (
        getattr(captured(pb.GenerateRequest.FromString(message.SerializeToString())), name)
        == (VALUES[name])
    )


def test_custom_parameters_are_sent() -> None:
    message = sent(custom_params={"a": 1.0, "b": ["c", None]})
    found = json_format.MessageToDict(message.sampling_params.custom_params)
    assert found == {"a": 1.0, "b": ["c", None]}


def test_what_is_unset_stays_unset() -> None:
    message = sent()
    assert message.HasField("sampling_params")
    assert [field.name for field, _ in message.sampling_params.ListFields()] == []
    assert not message.HasField("data_parallel_rank")
    assert not message.HasField("logprob_start_len")
    assert message.tokenized.input_ids[:] == [5, 6]


@pytest.mark.parametrize(
    "values", [{"n": -1}, {"max_new_tokens": 2**40}, {"sampling_seed": -1}, {"top_k": "many"}]
)
def test_a_value_that_does_not_fit_the_wire_is_named_and_not_shown(values: dict[str, Any]) -> None:
    [(name, value)] = values.items()
    with pytest.raises(ValueError, match=f"{name}: the value does not fit") as caught:
        sent(**values)
    assert str(value) not in str(caught.value)
