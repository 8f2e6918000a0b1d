"""The log of a command: where it goes, in which form, and what never comes through it."""

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog

from replay.log import configure_logging


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put the process-wide set-up back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def logged(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_when_nobody_watches() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    structlog.get_logger().info("listening", addresses=["127.0.0.1:50051"])
    (line,) = logged(stream)
    assert line.pop("timestamp")
    assert line == {"event": "listening", "level": "info", "addresses": ["127.0.0.1:50051"]}


def test_a_terminal_gets_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    configure_logging(stream=stream)
    structlog.get_logger().info("listening", addresses=["127.0.0.1:50051"])
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert text != stream.getvalue()
    assert "[info     ] listening" in text
    assert "addresses=['127.0.0.1:50051']" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    stream = Terminal()
    configure_logging(stream=stream)
    structlog.get_logger().info("listening")
    assert "\x1b" not in stream.getvalue()


def test_the_form_can_be_chosen() -> None:
    stream = Terminal()
    configure_logging(form="json", stream=stream)
    structlog.get_logger().info("a")
    assert logged(stream)[0]["event"] == "a"
    stream = Terminal()
    configure_logging(form="console", stream=io.StringIO())
    configure_logging(form="console", stream=stream)
    structlog.get_logger().info("a")
    assert not stream.getvalue().startswith("{")


def test_what_is_below_the_level_is_left_out() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream=stream)
    structlog.get_logger().info("a")
    logging.getLogger("hypercorn").info("b")
    structlog.get_logger().warning("c")
    logging.getLogger("hypercorn").warning("d")
    assert [line["event"] for line in logged(stream)] == ["c", "d"]


def test_dependencies_speak_through_the_same_renderer() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    logging.getLogger("hypercorn.error").warning("lost %s of %d", "some", 3)
    (line,) = logged(stream)
    assert line["event"] == "lost some of 3"
    assert (line["level"], line["logger"]) == ("warning", "hypercorn.error")


def test_warnings_of_python_become_lines_of_the_log() -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging(stream=stream)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert "DeprecationWarning: old" in str(logged(stream)[0]["event"])


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("of_library", [True, False])
def test_control_characters_cannot_make_lines_or_steer(form: str, of_library: bool) -> None:
    stream = io.StringIO()
    configure_logging(form=form, stream=stream)  # type: ignore[arg-type]
    evil = "a\nlevel=error forged\x1b[2J\u2028\u202e\ud800"
    if of_library:
        logging.getLogger("library").warning("%s", evil)
    else:
        structlog.get_logger().warning(evil, value=evil, nested={"k": [evil]})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert not set(text) & set("\x1b\u2028\u202e\ud800")


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("of_library", [True, False])
def test_a_traceback_has_no_local_variables(form: str, of_library: bool) -> None:
    """Prompts live in locals."""
    stream = io.StringIO()
    configure_logging(form=form, stream=stream)  # type: ignore[arg-type]
    try:
        prompt = "secret prompt".upper()
        raise ValueError("no\x1b[2J good")
    except ValueError:
        if of_library:
            logging.getLogger("library").exception("failed")
        else:
            structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert "ValueError" in text
    assert "test_log.py" in text
    assert "\x1b" not in text
    assert prompt not in text


def test_importing_the_library_sets_nothing_up() -> None:
    program = (
        "import logging, structlog, replay.config, replay.log, replay.runtime\n"
        "assert not structlog.is_configured()\n"
        "assert not logging.getLogger().handlers\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_log_whose_reader_left_does_not_bring_the_program_down() -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    configure_logging(stream=Broken())
    structlog.get_logger().info("a")
