"""A tokenizer as a gateway gets it."""

import hashlib
import io
import zipfile

import pytest

from replay.worker.tokenizer_archive import CHUNK_BYTES, archive_chunks, build_archive


def test_the_archive_holds_the_tokenizer_and_not_the_weights(tmp_path):
    for name in ("tokenizer.json", "config.json", "merges.txt", "chat_template.jinja"):
        (tmp_path / name).write_text(name)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "folder.json").mkdir()

    with zipfile.ZipFile(io.BytesIO(build_archive(tmp_path))) as archive:
        assert sorted(archive.namelist()) == [
            "chat_template.jinja",
            "config.json",
            "merges.txt",
            "tokenizer.json",
        ]
        assert archive.read("tokenizer.json") == b"tokenizer.json"


def test_the_same_folder_gives_the_same_bytes(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")

    assert build_archive(tmp_path) == build_archive(tmp_path)


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks_make_the_whole_and_the_last_has_its_digest(size):
    archive = bytes(size)

    chunks = list(archive_chunks(archive))

    assert b"".join(data for data, _ in chunks) == archive
    assert [digest for _, digest in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1][1] == hashlib.sha256(archive).hexdigest()
