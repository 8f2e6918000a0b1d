"""The file that a run leaves."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.observation import Choice, Observation, Outcome
from replay.player.references import read_references
from replay.player.results import RunHead, read_results, write_end, write_head, write_observation
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.lines import split_lines

HEAD = RunHead(source="trace.jsonl", target="grpc://x", pace="original", started_unix_ns=5)
OPTIONAL = st.none() | st.integers(0, 2**62)

CHOICES = st.builds(
    Choice,
    index=st.integers(0, 9),
    finish_reason=st.none() | st.text(),
    output_tokens=st.integers(0, 9),
    token_ids=st.none() | st.lists(st.integers(0, 2**32 - 1)).map(lambda ids: array("I", ids)),
    text=st.none() | st.text(),
    is_truncated=st.booleans(),
)
OBSERVATIONS = st.builds(
    Observation,
    request_id=st.text(),
    position=st.integers(0, 2**31),
    outcome=st.sampled_from(Outcome),
    choices=st.lists(CHOICES, max_size=3).map(tuple),
    prompt_tokens=OPTIONAL,
    cached_tokens=OPTIONAL,
    first_token_offset_ns=OPTIONAL,
    last_token_offset_ns=OPTIONAL,
    end_offset_ns=OPTIONAL,
    chunk_offsets_ns=st.none()
    | st.lists(st.integers(0, 2**62)).map(lambda offsets: array("Q", offsets)),
    scheduled_ns=OPTIONAL,
    sent_ns=OPTIONAL,
    error=st.none() | st.text(),
    filled=st.lists(st.sampled_from(["prompt", "stream"])).map(tuple),
)


@given(st.lists(OBSERVATIONS, max_size=4))
def test_what_was_written_is_read_again(observations: list[Observation]) -> None:
    data = [write_head(HEAD), *map(write_observation, observations), write_end({"sent": 1})]
    notes = Notes()
    results = read_results(split_lines(data), notes)
    assert results.head == HEAD
    assert results.observations == observations
    assert results.end == {"sent": 1}
    assert notes.summary() == []


def test_a_run_that_was_killed_is_read_as_far_as_it_came() -> None:
    whole = write_observation(Observation(request_id="a"))
    notes = Notes()
    results = read_results(split_lines([write_head(HEAD), whole, whole[:-9]]), notes)
    assert len(results.observations) == 1
    assert results.end is None
    assert notes.torn_lines == [3]
    assert "did not come to its end" in notes.warnings[0]


def test_the_schedule_delay_is_written_for_those_who_read_the_file_without_us() -> None:
    observation = Observation(request_id="a", scheduled_ns=10, sent_ns=15)
    assert json.loads(write_observation(observation))["schedule_delay_ns"] == 5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"outcome":"complete"}', "request_id: is missing"),
        ('{"request_id":"a","outcome":"asleep"}', "outcome: must be one of"),
        (
            '{"request_id":"a","outcome":"complete","choices":[5]}',
            r"choices\[0\]: must be an object",
        ),
        ('{"request_id":"a","outcome":"error","chunk_offsets_ns":[-1]}', "chunk_offsets_ns"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=f"trace:2: {reason}"):
        read_results(split_lines([write_head(HEAD), line.encode() + b"\n"]), Notes())


def test_another_schema_is_refused() -> None:
    with pytest.raises(TraceError, match=r"schema: must be replay\.results\.v1"):
        read_results(split_lines([b'{"schema":"x"}\n']), Notes())


# ---- references


@pytest.mark.parametrize("name", ["request_id", "id", "rid"])
@pytest.mark.parametrize("key", ["prompt_token_ids", "input_ids", "token_ids", "prompt_ids"])
def test_reference_prompts_are_read_under_several_names(name: str, key: str) -> None:
    line = json.dumps({name: "a", key: [1, 2]}).encode()
    [found] = read_references(split_lines([line]), Notes())
    assert (found.request_id, found.prompt_ids) == ("a", array("I", (1, 2)))


def test_the_prompts_of_an_array_are_named_by_their_place() -> None:
    line = b'{"id":"a","input_ids":[[1],[2,3]]}\n'
    found = list(read_references(split_lines([line]), Notes()))
    assert [each.request_id for each in found] == ["a-p0", "a-p1"]


def test_a_reference_without_a_name_or_ids_is_refused() -> None:
    with pytest.raises(TraceError, match="needs one of request_id, id, rid"):
        list(read_references(split_lines([b'{"id":"a"}\n']), Notes()))
