import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.web.json_body import BodyError, read_body
from replay.worker.faults import Admission, Failing, Stalling


def problems(body: bytes, cls: type = Failing) -> tuple[int, list[str]]:
    with pytest.raises(BodyError) as refused:
        read_body(body, cls)
    return refused.value.status, list(refused.value.problems)


def test_what_is_left_out_has_its_default() -> None:
    assert read_body(b'{"code": "ABORTED"}', Failing) == Failing(code="ABORTED")
    assert read_body(b" {} ", Stalling) == Stalling()


def test_null_is_a_value_where_none_is() -> None:
    assert read_body(b'{"requests": null, "seconds": null}', Stalling) == Stalling()
    status, lines = problems(b'{"after_tokens": null}', Stalling)
    assert (status, lines) == (422, ["after_tokens: must be an integer"])


def test_a_whole_number_is_one_however_it_is_written() -> None:
    read = read_body(b'{"after_tokens": 2.0, "seconds": 3}', Stalling)
    assert (read.after_tokens, read.seconds) == (2, 3.0)
    assert (type(read.after_tokens), type(read.seconds)) == (int, float)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'{"requests": 1, "requests": 2}', "a key is there twice"),
        (b'{"seconds": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "the body is nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, line: str) -> None:
    assert problems(body) == (400, [line])


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"{}", ["code: is required"]),
        (b'{"code": 3}', ["code: must be text"]),
        (b'{"code": "OK", "requests": true}', ["requests: must be an integer or null"]),
        (b'{"code": "ABORTED", "after_tokens": 1.5}', ["after_tokens: must be an integer"]),
        (b'{"code": "ABORTED", "requests": 0}', ["requests: must be at least 1, is 0"]),
        (b'{"code": "ABORTED", "message": "\\ud800"}', ["message: has half of a surrogate pair"]),
        (
            b'{"code": "ABORTED", "tokens\\n": 1}',
            [
                '"tokens\\n": unknown key; known here are '
                "code, message, after_tokens, requests, seconds"
            ],
        ),
    ],
)
def test_wrong_values_are_named_together(body: bytes, lines: list[str]) -> None:
    assert problems(body) == (422, lines)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" * 400])
def test_a_number_that_no_double_holds_is_refused(number: bytes) -> None:
    status, _ = problems(b'{"delay_ms": ' + number + b"}", Admission)
    assert status == 422


@given(body=st.binary() | st.text().map(str.encode))
def test_no_body_does_harm(body: bytes) -> None:
    with contextlib.suppress(BodyError):
        read_body(body, Admission)
