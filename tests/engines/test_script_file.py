"""What may stand in a script, and what is said of what may not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engines.script_file import (
    ERROR_CODES,
    MOST_FAULTS,
    ScriptedChoice,
    ScriptedError,
    read_script,
)


def line(**keys: Any) -> bytes:
    return json.dumps({"request_id": "r", "chunks": [[1, 2], [3]], **keys}).encode()


def test_a_line_with_all_keys_is_read():
    script = read_script(
        [
            line(
                index=0, offsets_ms=[0, 1.5], finish_reason="length", output_logprobs=[-1, -2.5, 0]
            ),
            line(
                index=1,
                matched_stop="END",
                error={"code": "UNAVAILABLE", "message": "gone", "after_chunks": 1},
                times=3,
            ),
        ]
    )
    assert script.faults == []
    assert script.choices == [
        ScriptedChoice(
            line=1,
            request_id="r",
            chunks=((1, 2), (3,)),
            offsets_ms=(0.0, 1.5),
            finish_reason="length",
            logprobs=(-1.0, -2.5, 0.0),
        ),
        ScriptedChoice(
            line=2,
            request_id="r",
            index=1,
            chunks=((1, 2), (3,)),
            matched_stop="END",
            error=ScriptedError(code="UNAVAILABLE", message="gone", after_chunks=1),
            times=3,
        ),
    ]


def test_what_is_left_out_or_null_has_its_default():
    names = ("index", "offsets_ms", "finish_reason", "matched_stop", "output_logprobs", "error")
    (bare,) = read_script([line()]).choices
    (nulls,) = read_script([line(**dict.fromkeys((*names, "times")))]).choices
    assert bare == nulls
    assert (bare.finish_reason, bare.index, bare.times, bare.error) == ("stop", 0, None, None)


def test_an_error_without_a_place_stands_behind_all_chunks():
    (choice,) = read_script([line(error={"code": "INTERNAL"})]).choices
    assert choice.error == ScriptedError(code="INTERNAL", message="", after_chunks=2)


def test_blank_lines_and_a_byte_order_mark_say_nothing_but_lines_are_counted():
    script = read_script([b"\xef\xbb\xbf" + line() + b"\r\n", b"\n", b"   \n", b"no\n"])
    assert [choice.line for choice in script.choices] == [1]
    assert [number for number, _ in script.faults] == [4]


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_that_is_an_error_may_be_named(code: str):
    from purerpc.grpclib.status import StatusCode

    assert StatusCode[code] is not StatusCode.OK
    assert read_script([line(error={"code": code})]).faults == []
    assert len(ERROR_CODES) == len(StatusCode) - 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "is not JSON from character 2"),
        (b"[]", "must be an object, is a list"),
        (b"\xff\xfe\xff", "is not UTF-8"),
        (b'{"request_id": "r", "chunks": [NaN]}', "NaN is no JSON number"),
        (b'{"request_id": "r", "request_id": "s", "chunks": []}', "request_id: is there twice"),
        (b'{"chunks": []}', "request_id: is missing"),
        (b'{"request_id": "r"}', "chunks: is missing"),
        (b'{"request_id": "r", "chunks": null}', "chunks: is missing"),
        (b"[" * 100_000, "is nested too deep"),
        (line(request_id=""), "request_id: must not be empty"),
        (line(request_id=7), "request_id: must be text, is a number"),
        (line(request_id="\ud800"), "request_id: has half of a surrogate pair"),
        (line(delay=1), "delay: is not a key of a script"),
        (line(index=-1), "index: must be from 0 to 2147483647"),
        (line(index=True), "index: must be a whole number, is a boolean"),
        (line(chunks=[1]), "chunks[0]: must be a list, is a number"),
        (line(chunks={}), "chunks: must be a list, is an object"),
        (line(chunks=[[1], [-1]]), "chunks[1]: must hold token ids, from 0 to 4294967295"),
        (line(chunks=[[2**32]]), "chunks[0]: must hold token ids, from 0 to 4294967295"),
        (line(chunks=[[True]]), "chunks[0]: must hold token ids, from 0 to 4294967295"),
        (line(chunks=[[1.0]]), "chunks[0]: must hold token ids, from 0 to 4294967295"),
        (line(offsets_ms=[0]), "offsets_ms: has 1 entries for 2 chunks"),
        (line(offsets_ms=[0, 1, 2]), "offsets_ms: has 3 entries for 2 chunks"),
        (line(offsets_ms=[2, 1]), "offsets_ms[1]: goes down"),
        (line(offsets_ms=[-1, 1]), "offsets_ms[0]: must not be below 0"),
        (line(offsets_ms=["0", 1]), "offsets_ms[0]: must be a finite number"),
        (b'{"request_id": "r", "chunks": [[]], "offsets_ms": [1e999]}', "must be a finite number"),
        (line(offsets_ms=[0, 10**400]), "offsets_ms[1]: must be a finite number"),
        (line(finish_reason="done"), "finish_reason: must be one of stop, length, abort"),
        (line(finish_reason=["stop"]), "finish_reason: must be one of stop, length, abort"),
        (line(matched_stop=-1), "matched_stop: must be from 0 to 4294967295"),
        (line(matched_stop=[1]), "matched_stop: must be a whole number, is a list"),
        (line(matched_stop=1, finish_reason="length"), "matched_stop: needs finish_reason stop"),
        (line(output_logprobs=[-1]), "output_logprobs: has 1 entries for 3 tokens"),
        (line(output_logprobs=[-1, 0.5, 0]), "output_logprobs: must hold log probabilities"),
        (line(error="UNAVAILABLE"), "error: must be an object, is text"),
        (line(error={}), "error.code: is missing"),
        (line(error={"code": "OK"}), "error.code: must be the name of a gRPC code"),
        (line(error={"code": 14}), "error.code: must be the name of a gRPC code"),
        (line(error={"code": "unavailable"}), "error.code: must be the name of a gRPC code"),
        (line(error={"code": "INTERNAL", "message": 1}), "error.message: must be text"),
        (line(error={"code": "INTERNAL", "after": 1}), "error.after: is not a key of a script"),
        (
            line(error={"code": "INTERNAL", "after_chunks": 3}),
            "error.after_chunks: is 3 of 2 chunks",
        ),
        (line(times=0), "times: must be from 1 to 2147483647"),
        (line(times=1.0), "times: must be a whole number, is a number"),
    ],
)
def test_a_wrong_line_is_named_with_the_reason(text: bytes, reason: str):
    script = read_script([line(request_id="other"), text])
    ((number, said),) = script.faults
    assert number == 2
    assert reason in said
    assert "\n" not in said


def test_every_wrong_line_is_told_up_to_a_bound():
    faults = read_script([b"{}"] * 1000).faults
    assert [number for number, _ in faults] == list(range(1, MOST_FAULTS + 1))


def test_a_line_that_no_request_could_get_is_refused():
    faults = dict(read_script([line(), line(index=1), line(), line(index=1, times=2)]).faults)
    assert faults.keys() == {3, 4}
    assert "line 1 has the same request_id and index" in faults[3]
    assert "line 2 has the same request_id and index" in faults[4]
    ((number, said),) = read_script([line(index=1), line(index=2)]).faults
    assert number == 1
    assert "no line of index 0" in said


def test_lines_that_may_be_used_so_often_may_follow_each_other():
    assert read_script([line(times=1), line(times=2), line()]).faults == []


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1))).flatmap(
        lambda chunks: st.tuples(
            st.just(chunks),
            st.lists(st.floats(0, 1e6), min_size=len(chunks), max_size=len(chunks)).map(sorted),
        )
    )
)
def test_what_is_written_is_read(answer: tuple[list[list[int]], list[float]]):
    chunks, offsets = answer
    (choice,) = read_script([line(chunks=chunks, offsets_ms=offsets)]).choices
    assert [list(chunk) for chunk in choice.chunks] == chunks
    assert list(choice.offsets_ms or ()) == offsets
    assert choice.seconds == (offsets[-1] / 1000 if offsets else 0)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes):
    script = read_script([data])
    assert len(script.choices) + len(script.faults) <= 2
