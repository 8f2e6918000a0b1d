"""Half a minute of fuzzing, and the conversations that it starts from."""

import pytest

from tests.fuzz.__main__ import STEPS, fuzz
from tests.fuzz.corpus import FOLDER, conversations
from tests.fuzz.target import run


def test_the_corpus_is_what_its_script_makes():
    found = {path.name: path.read_bytes() for path in FOLDER.iterdir()}

    assert found == conversations()


@pytest.mark.parametrize("name", sorted(conversations()))
@pytest.mark.parametrize("step", STEPS)
def test_a_known_conversation_keeps_all_promises(name, step):
    run(conversations()[name], step)


@pytest.mark.slow
def test_half_a_minute_of_mutations_breaks_no_promise():
    runs, data, error = fuzz(30.0, seed=1)

    assert error is None, f"{error!r} for {data!r}"
    assert runs > 1000
