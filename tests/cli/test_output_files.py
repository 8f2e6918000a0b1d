"""What commands write never harms what is there."""

import json
import os
from pathlib import Path

import click
import pytest

from replay.cli.output_files import refuse_overwriting, write_whole
from replay.errors import ConfigError
from tests.cli.test_play_command import run, trace


def test_a_file_is_written_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report"
    assert write_whole(path, [b"ab", b"c"], mode=0o600) == 3
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"abc", 0o600)
    path.chmod(0o640)
    write_whole(path, [b"new"])
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_bytes(b"old")

    def pieces():
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(click.UsageError, match=r"cannot write .*: No space left on device"):
        write_whole(path, pieces())
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("there")
    write_whole(link, [b"new"])
    assert link.is_symlink()
    assert link.read_bytes() == b"new"
    write_whole(os.devnull, [b"x"])
    for path in ("/dev/full", tmp_path, tmp_path / "absent" / "file"):
        with pytest.raises(click.UsageError, match="cannot write"):
            write_whole(path, [b"x"])


def test_an_output_that_is_read_or_written_twice_is_refused(tmp_path: Path) -> None:
    source, link = tmp_path / "source", tmp_path / "link"
    source.write_bytes(b"x")
    link.symlink_to(source)
    with pytest.raises(ConfigError) as caught:
        refuse_overwriting([source, None], {"--json": link, "--csv": "new", "--html": "./new"})
    assert len(caught.value.problems) == 2
    assert "--json: " in caught.value.problems[0]
    assert "--csv and --html are one file" in caught.value.problems[1]
    refuse_overwriting([source], {"--json": "-", "--csv": os.devnull, "--html": os.devnull})


def test_no_command_writes_over_its_source(tmp_path: Path) -> None:
    source = trace(tmp_path / "trace.jsonl", 3)
    references = tmp_path / "ids.jsonl"
    references.write_text(json.dumps({"id": "a", "prompt_token_ids": [1]}) + "\n")
    before = source.read_bytes(), references.read_bytes()
    target = ("--target", "grpc://127.0.0.1:1")
    for arguments in (
        ("play", source, *target, "--results", source, "--overwrite"),
        ("play", source, *target, "--json", source),
        ("compare", references, references, "--html", references),
        ("convert", references, "-o", references),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert "it would be written over" in refused.output
    assert (source.read_bytes(), references.read_bytes()) == before
