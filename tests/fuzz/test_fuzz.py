"""Half a minute of fuzzing, and the conversations that it starts from."""

import pytest

from tests.fuzz.__main__ import STEPS, fuzz
from tests.fuzz.corpus import FOLDER, conversations
from tests.fuzz.target import HALVES, run


def test_the_corpus_is_what_its_script_makes():
    found = {
        half: {path.name: path.read_bytes() for path in (FOLDER / half).iterdir()}
        for half in HALVES
    }

    assert found == conversations()


@pytest.mark.parametrize(
    ("half", "name"), [(half, name) for half in HALVES for name in sorted(conversations()[half])]
)
@pytest.mark.parametrize("step", STEPS)
def test_a_known_conversation_keeps_all_promises(half, name, step):
    run(half, conversations()[half][name], step)


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES)
def test_mutations_of_a_quarter_of_a_minute_break_no_promise(half):
    runs, data, error = fuzz(half, 15.0, seed=1)

    assert error is None, f"{error!r} for {data!r}"
    assert runs > 1000
